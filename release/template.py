"""One object with its variants as text for Helm. Pure.

What components change stands between ``{{- if $on.COMPONENT }}`` and ``{{- end }}``. Where several
change the same, the last in the order of :func:`release.variants.components` wins, as in a
kustomization that lists them in this order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import yaml

from release.variants import ABSENT, Absent, Change, Element, Leaves, Path_

Condition: TypeAlias = bool | str
"""Always, never, or an expression of Go templates."""

Choices: TypeAlias = list[tuple[str, Any]]
"""Values by component, the weakest first; the component of what is always there is empty."""

Special: TypeAlias = Callable[[Path_, Any, int], str | None]
"""Gives the text at a path where it is not just the value: (path, value, indent).

At the end of a map or list it is asked for more: the path ends with ``"..."``, and the value says
when each named element is there.
"""

Replace: TypeAlias = Callable[[str], str]
"""Puts values of the chart into text that was escaped."""


@dataclass(slots=True)
class _Node:
    """A place in the tree of an object."""

    children: dict[str | Element, "_Node"] = field(default_factory=dict)
    choices: Choices = field(default_factory=list)


def switch(component: str) -> str:
    """Return how templates name a component: ``host-driver`` is ``$on.hostDriver``."""
    return f"$on.{camel(component)}"


def camel(name: str) -> str:
    """Return a name without dashes."""
    first, *others = name.split("-")
    return first + "".join(each.capitalize() for each in others)


def write_object(
    base: Leaves | Absent, changes: tuple[Change, ...], special: Special, replace: Replace
) -> str:
    """Write one object.

    Args:
        base: its leaves without components; ``ABSENT`` where a component brings it.
        changes: of the components, in their order.
        special: see there.
        replace: see there.
    """
    leaves: dict[Path_, Choices] = {}
    there: Choices = [("", True)] if not isinstance(base, Absent) else []
    if not isinstance(base, Absent):
        leaves = {path: [("", value)] for path, value in base.items()}
    for change in changes:
        if change.leaves is not None:
            for path, value in change.leaves.items():
                leaves.setdefault(path, []).append((change.component, value))
        elif isinstance(change.comes, Absent):
            there.append((change.component, ABSENT))
        else:
            there.append((change.component, True))
            for path, value in change.comes.items():
                leaves.setdefault(path, []).insert(0, ("", value))
    writer = _Writer(special, replace)
    lines = ["---", *writer.children(_tree(leaves), (), 0, around=True)]
    return "\n".join(_guarded(_presence(there), lines, around=True)) + "\n"


def _tree(leaves: dict[Path_, Choices]) -> _Node:
    root = _Node()
    for path, choices in leaves.items():
        node = root
        for step in path:
            if node.choices:
                raise ValueError(f"{path}: a value in one variant, more in another")
            node = node.children.setdefault(step, _Node())
        if node.children:
            raise ValueError(f"{path}: a value in one variant, more in another")
        node.choices = choices
    return root


def _presence(choices: Choices) -> Condition:
    """Return when there is a value at all."""
    condition: Condition = False
    for component, value in choices:
        if not component:
            condition = True
        elif not isinstance(value, Absent):
            condition = _or([condition, switch(component)])
        elif condition is not False:
            without = f"(not {switch(component)})"
            condition = without if condition is True else f"(and {without} {condition})"
    return condition


def _or(conditions: list[Condition]) -> Condition:
    if True in conditions:
        return True
    parts = sorted({part for each in conditions if isinstance(each, str) for part in _parts(each)})
    if not parts:
        return False
    return f"(or {' '.join(parts)})" if len(parts) > 1 else parts[0]


def _parts(condition: str) -> list[str]:
    """Return the alternatives of a condition; names alone are taken apart."""
    inner = condition.removeprefix("(or ").removesuffix(")")
    return inner.split() if condition.startswith("(or $") and "(" not in inner else [condition]


def _of(node: _Node) -> Condition:
    if node.choices:
        return _presence(node.choices)
    return _or([_of(each) for each in node.children.values()])


def _guarded(condition: Condition, lines: list[str], *, around: Condition) -> list[str]:
    if condition is True or condition == around:
        return lines
    assert isinstance(condition, str), "what is never there"  # noqa: S101 - tells mypy
    text = condition.removeprefix("(").removesuffix(")") if condition[0] == "(" else condition
    return [f"{{{{- if {text} }}}}", *lines, "{{- end }}"]


@dataclass(frozen=True, slots=True)
class _Writer:
    special: Special
    replace: Replace

    def children(self, node: _Node, path: Path_, indent: int, *, around: Condition) -> list[str]:
        """Write the entries of a map or the elements of a list, those of one condition together."""
        lines: list[str] = []
        written = (self._child(step, each, path, indent) for step, each in node.children.items())
        for condition, group in groupby(written, key=lambda each: each[0]):
            body = [line for _, found in group for line in found]
            lines += _guarded(condition, body, around=around)
        return lines

    def _child(
        self, step: str | Element, node: _Node, path: Path_, indent: int
    ) -> tuple[Condition, list[str]]:
        condition, inner = _of(node), (*path, step)
        if isinstance(step, Element):
            return condition, self._element(node, inner, indent, around=condition)
        start = f"{' ' * indent}{_escaped(_scalar(step))}:"
        if not node.children:
            return condition, self._values(node.choices, inner, start, indent)
        if (written := self.special(inner, None, indent)) is not None:
            return condition, [start + written]
        elements = {
            key.name: _of(each) for key, each in node.children.items() if isinstance(key, Element)
        }
        below = indent if elements else indent + 2
        body = self.children(node, inner, below, around=condition)
        more = self.special((*inner, "..."), elements, indent)
        return condition, [start, *body, *([more] if more else [])]

    def _element(self, node: _Node, path: Path_, indent: int, *, around: Condition) -> list[str]:
        """Write an element of a list, its name first: that is always there."""
        rest = _Node({key: each for key, each in node.children.items() if key != "name"})
        name = self._text(node.children["name"].choices[0][1], indent + 2)
        return [
            f"{' ' * indent}- name:{name}",
            *self.children(rest, path, indent + 2, around=around),
        ]

    def _values(self, choices: Choices, path: Path_, start: str, indent: int) -> list[str]:
        """Write the value that components choose, where there is one."""
        lines, word = [], "if"
        present = [each for each in choices if not isinstance(each[1], Absent)]
        if all(value == present[0][1] for _, value in present):
            present = [("", present[0][1])]
        for component, value in reversed(present):
            written = self.special(path, value, indent)
            line = start + (self._text(value, indent) if written is None else written)
            if component:
                lines += [f"{{{{- {word} {switch(component)} }}}}", line]
                word = "else if"
            else:
                lines += ["{{- else }}", line] if lines else [line]
                break
        return [*lines, "{{- end }}"] if len(lines) > 1 else lines

    def _text(self, value: Any, indent: int) -> str:
        """Write a value after its key: on the same line, or below it."""
        if isinstance(value, str) and "\n" in value and _is_plain(value):
            mark = "|-" if not value.endswith("\n") else "|"
            lines = value.removesuffix("\n").split("\n")
            pad = " " * (indent + 2)
            block = "".join(f"\n{pad}{each}" if each else "\n" for each in lines)
            return self.replace(_escaped(f" {mark}{block}"))
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            text = yaml.safe_dump(value, sort_keys=False, width=10_000)
            pad = " " * indent
            return self.replace(_escaped("".join(f"\n{pad}{each}" for each in _lines(text))))
        return self.replace(_escaped(" " + _scalar(value)))


def _lines(text: str) -> Iterator[str]:
    yield from text.rstrip("\n").split("\n")


def _is_plain(text: str) -> bool:
    """Return whether a block of YAML has it to the letter."""
    lines = text.split("\n")
    return (
        not text.startswith((" ", "\n"))
        and not text.endswith("\n\n")
        and not any(each != each.rstrip() or "\t" in each for each in lines)
    )


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1_000_000)
    return text.removesuffix("\n").removesuffix("...").removesuffix("\n")


def _escaped(text: str) -> str:
    """Write text so that Helm leaves it as it is."""
    return text.replace("{{", '{{ "{{" }}')
