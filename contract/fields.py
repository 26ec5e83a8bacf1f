"""Reads one object of a decoded document that others wrote; errors have path, value and rule."""

from collections.abc import Callable, Iterator
from typing import Any, Self

from contract.errors import quote
from contract.text import is_text

_LARGEST = 2**63 - 1
"""No valid number is larger, and a huge one could not be converted to a float."""


class Fields:
    """The fields of one object; one that is null counts as absent. Methods raise ``error(text)``.

    Attributes:
        where: path of the object, for errors; empty for the document itself.
    """

    __slots__ = ("_error", "values", "where")

    TEXT, OBJECT = "must be text", "must be a mapping"

    def __init__(
        self,
        where: str,
        values: object,
        error: Callable[[str], Exception],
        rule: str = OBJECT,
        exactly: tuple[str, ...] = (),
    ) -> None:
        """Keep an object, for which *rule* demands an object, *exactly* all its fields."""
        # Fields usually have this order, and tuples are compared faster than sets.
        if not isinstance(values, dict) or (
            exactly and tuple(values) != exactly and values.keys() != set(exactly)
        ):
            rule = f"must have exactly the fields {', '.join(exactly)}" if exactly else rule
            raise error(f"{where}: {rule}" if where else rule)
        self.where = where
        self.values: dict[str, Any] = values
        self._error = error

    def __contains__(self, name: str) -> bool:
        return bool(self.values.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.where}.{name}" if self.where else name

    def error(self, name: str, rule: str) -> Exception:
        """Return the error for one field."""
        found = quote(self.values.get(name))
        return self._error(f"{self.at(name)}: Invalid value: {found}: {rule}")

    def raw(self, name: str) -> Any:
        """Return a value of any type."""
        return self.values.get(name)

    def text(self, name: str) -> str:
        """Return a text; empty if it is absent."""
        found = self.values.get(name, "")
        return found if isinstance(found, str) else self._typed(name, str, self.TEXT) or ""

    def some_text(self, name: str) -> str:
        """Return a text that must be there, and that can be encoded."""
        found = self.values.get(name)
        if not is_text(found):
            raise self.error(name, self.TEXT)
        return found

    def flag(self, name: str) -> bool:
        """Return a boolean; false if it is absent."""
        return self._typed(name, bool, "must be true or false") or False

    def whole(self, name: str, least: int = 0) -> int:
        """Return a whole number, *least* or more, that must be there."""
        found: Any = self.values.get(name)
        if type(found) is not int or found < least:
            raise self.error(name, f"must be a whole number, {least} or more")
        if found > _LARGEST:
            raise self._error(f"{self.at(name)}: must be at most {_LARGEST}")
        return found

    def items(self, name: str) -> list[Any]:
        """Return a list; empty if it is absent."""
        return self._typed(name, list, "must be a list") or []

    def mapping(self, name: str, rule: str = "") -> dict[str, Any] | None:
        """Return an object as it is; ``None`` if it is absent, unless *rule* demands it."""
        found: dict[str, Any] | None = self._typed(name, dict, rule or self.OBJECT)
        if found is None and rule:
            raise self.error(name, rule)
        return found

    def child(self, name: str, rule: str = "") -> Self:
        """Return an object; an empty one if it is absent, unless *rule* demands it."""
        return self.nested(self.at(name), self.mapping(name, rule) or {})

    def nested(self, where: str, values: object) -> Self:
        """Return the fields of an object inside this one."""
        return type(self)(where, values, self._error)

    def _typed(self, name: str, kind: type, rule: str) -> Any:
        found = self.values.get(name)
        if found is not None and not isinstance(found, kind):
            raise self.error(name, rule)
        return found
