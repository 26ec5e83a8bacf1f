"""The decision about one object: errors, patch and warnings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from common.text import cut
from contract.errors import FieldError

# kubectl prints one line for each warning. The API server cuts a warning at 256 characters, and
# all of them at 4096.
_LONGEST_WARNING = 120
_MOST_WARNINGS = 10
_LONGEST_NAME = 40

Operation = Mapping[str, Any]
"""One operation of a JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one object.

    Attributes:
        errors: reasons to deny the object; it is allowed if there are none.
        patch: changes to the object.
        warnings: lines for the object's author; see :func:`bounded`.
    """

    errors: tuple[FieldError, ...] = ()
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the object is allowed."""
        return not self.errors

    @property
    def label(self) -> str:
        """The decision as one word, for logs and metrics."""
        if self.errors:
            return "denied"
        return "patched" if self.patch else "allowed"

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that the object breaks, each once, sorted."""
        return tuple(sorted({error.rule for error in self.errors}))


def bounded(warnings: Iterable[str]) -> tuple[str, ...]:
    """Limit number and length of warnings; if some are left out, the last one counts them."""
    lines = [_one_line(each) for each in warnings]
    if len(lines) > _MOST_WARNINGS:
        more = len(lines) - (_MOST_WARNINGS - 1)
        lines[_MOST_WARNINGS - 1 :] = [f"and {more} more warnings like these"]
    return tuple(lines)


def short(name: str) -> str:
    """Shorten a name that its author chose, for a warning."""
    return cut(name, _LONGEST_NAME)


def _one_line(text: str) -> str:
    # A control character makes the API server drop the whole warning.
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return cut(printable, _LONGEST_WARNING)
