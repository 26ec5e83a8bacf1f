"""What was decided about an object, whoever decided it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.errors import FieldError

# kubectl prints each warning on a line of its own, and the API server starts to cut
# at 256 characters each and 4096 in all.
_LONGEST_WARNING = 120
_MOST_WARNINGS = 10

Operation = Mapping[str, Any]
"""One operation of a JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the API server is told.

    Attributes:
        errors: why the object is denied; none allows it.
        patch: what to change on it.
        warnings: what its author should know; see :func:`bounded`.
    """

    errors: tuple[FieldError, ...] = ()
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the object may pass."""
        return not self.errors

    @property
    def label(self) -> str:
        """One word for logs and metrics."""
        if self.errors:
            return "denied"
        return "patched" if self.patch else "allowed"

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules broken, each once, sorted."""
        return tuple(sorted({error.rule for error in self.errors}))


def bounded(warnings: Iterable[str]) -> tuple[str, ...]:
    """Keep warnings few, short and on one line each; the last one says how many more there were."""
    lines = [_one_line(each) for each in warnings]
    if len(lines) > _MOST_WARNINGS:
        more = len(lines) - (_MOST_WARNINGS - 1)
        lines[_MOST_WARNINGS - 1 :] = [f"and {more} more warnings like these"]
    return tuple(lines)


def cut(text: str, length: int) -> str:
    """Shorten *text* to at most *length* characters, showing that it was."""
    return text if len(text) <= length else text[: length - 3] + "..."


def _one_line(text: str) -> str:
    # A control character makes the API server drop the whole warning.
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return cut(printable, _LONGEST_WARNING)
