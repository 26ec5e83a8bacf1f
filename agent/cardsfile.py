"""Reading a cards file: YAML in, decoded document out. The only importer of PyYAML here."""

from pathlib import Path

import yaml

from agent.cards import Inventory, parse_inventory
from agent.errors import SettingsError

# What PyYAML's constructors let through for scalars they cannot convert, such as a 13th
# month or ``!!bool maybe``, and its recursive parser for deep nesting.
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
        document = yaml.safe_load(text)
    except (yaml.YAMLError, *_LEAKS) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"cards: {path} is not YAML: {reason}") from error
    try:
        return parse_inventory(document)
    except SettingsError as error:
        raise SettingsError(f"cards: {path}: {error}") from error
