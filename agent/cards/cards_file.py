"""Reads and writes cards files, which are YAML. The only importer of PyYAML in the agent."""

from pathlib import Path
from typing import Any

import yaml

from agent.cards.inventory import Discovery, parse_inventory, write_inventory
from agent.errors import SettingsError
from contract.inventory import Inventory

# PyYAML raises these, beside its own errors, for scalars that it cannot convert (a 13th month,
# ``!!bool maybe``) and for deep nesting.
_LEAKS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


def load_inventory(path: Path) -> Inventory:
    """Read and parse the cards file at *path*.

    Raises:
        SettingsError: it cannot be read, is not YAML, or its content breaks a rule.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cards: cannot read {path}: {error}") from error
    try:
        document = decode_yaml(text)
    except ValueError as error:
        raise SettingsError(f"cards: {path} is not YAML: {error}") from error
    try:
        return parse_inventory(document)
    except SettingsError as error:
        raise SettingsError(f"cards: {path}: {error}") from error


def decode_yaml(text: str) -> object:
    """Decode YAML from an untrusted source.

    Raises:
        ValueError: it is not YAML; the message is one line.
    """
    try:
        document: object = yaml.safe_load(text)
    except (yaml.YAMLError, *_LEAKS) as error:
        raise ValueError(" ".join(str(error).split())) from error
    return document


def dump_discovery(found: Discovery) -> str:
    """Write a discovery as a cards file; cards that are left out become comments."""
    lines = ["# The cards of one node: a cards file of gpu-turnstile."]
    if found.driver:
        lines.append(f"# driver {_comment(found.driver)}")
    lines += [
        f"# left out: card {each.index} ({_comment(each.uuid or 'no UUID')}): "
        + _comment(each.reason)
        for each in found.left_out()
    ]
    document = write_inventory(found.inventory)
    document["links"] = [_OneLine(link) for link in document["links"]]
    text = yaml.dump(document, Dumper=_CardsDumper, sort_keys=False, width=120)
    return "\n".join(lines) + "\n" + text


class _OneLine(dict[str, Any]):
    """A mapping that the dumper writes on one line."""


class _CardsDumper(yaml.SafeDumper):
    """A dumper that writes :class:`_OneLine` on one line."""


_CardsDumper.add_representer(
    _OneLine,
    lambda dumper, line: dumper.represent_mapping("tag:yaml.org,2002:map", line, flow_style=True),
)


def _comment(text: str) -> str:
    """Return a text as one printable line, so that it cannot end its comment."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
