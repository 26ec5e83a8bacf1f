"""Reads manifests, writes JSON and YAML. The only module here that imports YAML."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any

import yaml

from view.model.manifest_fit import InvalidManifest
from view.model.reports import Freshness, Gap
from view.model.words import rfc3339
from view.terminal.faults import CommandError
from view.terminal.layout import Page

API_VERSION = "view.gpu-turnstile.io/v1"
"""Version of the schema: removed or redefined fields need a new one, added fields do not."""

_AS_KUBECTL = {
    "metadata.name": "name",
    "metadata.namespace": "namespace",
    "metadata.uid": "uid",
    "metadata.creationTimestamp": "created",
    "spec.nodeName": "node",
    "status.phase": "phase",
}
_STEP = re.compile(r"[^.\[\]]+")


def read_manifests(text: str, file: str) -> Iterator[Mapping[str, Any]]:
    """Read one or more objects from YAML or JSON; yield the items of a ``List`` one by one.

    Raises:
        InvalidManifest: the text cannot be parsed, or is not an object; the message names *file*.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidManifest(f"error parsing {file}: {_problem(error)}") from error
    for found in documents:
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise InvalidManifest(f"error parsing {file}: a manifest must be an object")
        items = found.get("items")
        if found.get("kind") == "List" and isinstance(items, list):
            yield from (each for each in items if isinstance(each, Mapping))
        else:
            yield found


def _problem(error: Exception) -> str:
    """Return place and problem in one line, without an excerpt of the text."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Output of a command, for people and for programs."""

    kind: Annotated[str, "kind of the list in JSON."]
    items: Annotated[Sequence[Any], "items of that list."]
    page: Annotated[Page, "the same as a page."]
    gaps: Annotated[Sequence[Gap], "what could not be read."] = ()
    resource: Annotated[str, "resource name for ``-o name``."] = "pod"
    more: Annotated[Mapping[str, Any], "further fields of the list in JSON."] = field(
        default_factory=dict
    )


def document(shown: CommandOutput, fresh: Freshness, server: str) -> Mapping[str, Any]:
    """Return a list for ``-o json`` and ``yaml``, with its time and what could not be read.

    Empty fields are included, so that a script does not need to check whether a field exists.
    """
    as_of = rfc3339(datetime.fromtimestamp(fresh.at, UTC))
    return {
        "apiVersion": API_VERSION,
        "kind": shown.kind,
        "metadata": {"asOf": as_of, "stale": fresh.stale, "server": server},
        "unknown": to_json(shown.gaps),
        "items": to_json(shown.items),
        **to_json(shown.more),
    }


def to_json(value: Any) -> Any:
    """Convert a report to values that ``json`` and YAML can write."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {key: to_json(getattr(value, name)) for name, key in _keys(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(each) for each in value]
    return value


@lru_cache(maxsize=64)
def _keys(kind: type) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, _camel(each.name)) for each in fields(kind))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def sort_by(items: Sequence[Any], path: str) -> list[Any]:
    """Sort by a path in ``-o json``, or one as for ``kubectl get``; items without the field last.

    Raises:
        CommandError: no item has this field.
    """
    wanted = path.strip("{}").removeprefix(".")
    steps = _STEP.findall(_AS_KUBECTL.get(wanted, wanted))
    keys = [_key(to_json(item), steps) for item in items]
    if items and all(key[0] == _NO_FIELD for key in keys):
        raise CommandError(
            f'error: couldn\'t find any field with path "{path}" in the list of objects'
        )
    order = sorted(range(len(items)), key=lambda at: keys[at])
    return [items[at] for at in order]


_NO_FIELD = 2


def _key(value: Any, steps: Sequence[str]) -> tuple[int, float, str]:
    for step in steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _NO_FIELD, 0, ""
    if isinstance(value, int | float):
        return 0, value, ""
    return (1, 0, str(value)) if value is not None else (1, 0, "\U0010ffff")


def write_document(value: Any, form: str) -> str:
    """Write plain values as ``json`` or ``yaml``, in ASCII: no character can steer a terminal."""
    if form == "json":
        return json.dumps(value, indent=2) + "\n"
    return str(yaml.safe_dump(value, sort_keys=False, default_flow_style=False))
