"""Errors about a user's object, worded as ``kubectl`` users know them.

::

    ValueError
    └── ContractError
        ├── InvalidName      a setting (the domain) cannot be used
        ├── InvalidStamp     an order stamp or a time does not parse
        └── InvalidRecord    an allocation record or an inventory does not parse

A :class:`FieldError` is one finding in a user's object.
"""

import json
from dataclasses import dataclass
from enum import StrEnum


class ContractError(ValueError):
    """Base of every error this package raises on bad input."""


class InvalidName(ContractError):
    """A configured name cannot be used as a Kubernetes name."""


class InvalidStamp(ContractError):
    """A stamp that does not parse; never read as zero."""


class InvalidRecord(ContractError):
    """An allocation record or an inventory that does not parse."""


class FieldFault(StrEnum):
    """The kind of a field's error, in the words of ``k8s.io/apimachinery`` ``field.ErrorType``."""

    INVALID = "Invalid value"
    REQUIRED = "Required value"


# A hostile value is quoted up to here: enough to find it, too short to flood a log.
_LONGEST_QUOTE = 64


def quote(value: object) -> str:
    """Show *value* as it stood in the object: JSON, on one line, cut to a bounded length."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if not isinstance(value, str | int | float | None):  # YAML knows dates and bytes as well
        value = str(value)
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST_QUOTE:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > _LONGEST_QUOTE:
        return json.dumps(value[:_LONGEST_QUOTE]) + "..."
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One finding.

    Attributes:
        path: the field from the object's root, such as
            ``spec.containers[0].resources.limits[tencent.com/vcuda-core]``.
        fault: the kind of finding.
        detail: the rule and what to do instead, one line.
        value: the value found, already quoted; empty when there is none.
        rule: a short stable identifier of the rule, for metrics and tests.
    """

    path: str
    fault: FieldFault
    detail: str
    rule: str
    value: str = ""

    def __str__(self) -> str:
        """Render as the API server renders a ``field.Error``."""
        found = f"{self.value}: " if self.fault is FieldFault.INVALID else ""
        return f"{self.path}: {self.fault.value}: {found}{self.detail}"
