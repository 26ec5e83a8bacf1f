"""Reports as plain JSON values: objects with camelCase keys, lists, text and numbers."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any


def to_json(value: Any) -> Any:
    """Return a report as values that ``json`` and YAML can write.

    Every field is there, empty ones too, so that a script need not ask.
    """
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
