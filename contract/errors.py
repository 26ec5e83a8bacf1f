"""Errors about a user's object, in the format that ``kubectl`` users know.

::

    ValueError
    └── ContractError
        ├── InvalidName      a setting (the domain) cannot be used
        ├── InvalidStamp     an order stamp or a time does not parse
        └── InvalidRecord    an allocation annotation or an inventory does not parse

A :class:`FieldError` is no exception: it describes one error in a user's object.
"""

import json
from dataclasses import dataclass
from enum import StrEnum


class ContractError(ValueError):
    """Base of every error that this package raises on bad input."""


class InvalidName(ContractError):
    """A configured name cannot be used as a Kubernetes name."""


class InvalidStamp(ContractError):
    """A stamp that does not parse; it must not be read as zero."""


class InvalidRecord(ContractError):
    """An allocation annotation or an inventory that does not parse."""


class FieldFault(StrEnum):
    """The kind of a field's error, as ``field.ErrorType`` of ``k8s.io/apimachinery`` prints it."""

    INVALID = "Invalid value"
    REQUIRED = "Required value"


# Longer values are cut: the rest is enough to find the value, and hostile ones cannot flood a log.
# They keep their end: UUIDs differ there. A UUID of a card has 40 characters.
_LONGEST_QUOTE = 80
_MOST_BITS = 256


def quote(value: object) -> str:
    """Return *value* as it stands in the object: JSON, on one line, of bounded length."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if not isinstance(value, str | int | float | None):  # YAML also has dates and bytes
        value = str(value)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > _LONGEST_QUOTE:
        half = _LONGEST_QUOTE // 2
        return f"{json.dumps(value[:half])}...{json.dumps(value[-half:])}"
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One error in a user's object.

    Attributes:
        path: path of the field from the object's root, such as
            ``spec.containers[0].resources.limits[tencent.com/vcuda-core]``.
        detail: the rule and what to do instead, one line.
        value: the field's value, already quoted; empty if it has none, and needs one.
        rule: a short stable identifier of the rule, for metrics and tests.
    """

    path: str
    detail: str
    rule: str
    value: str = ""

    @property
    def fault(self) -> FieldFault:
        """The kind of error."""
        return FieldFault.INVALID if self.value else FieldFault.REQUIRED

    def __str__(self) -> str:
        """Format it as the API server formats a ``field.Error``."""
        found = f"{self.value}: " if self.value else ""
        return f"{self.path}: {self.fault.value}: {found}{self.detail}"
