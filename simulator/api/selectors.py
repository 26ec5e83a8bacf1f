"""Field and label selectors of lists, watches and webhook configurations."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from simulator.api.resources import Json

Matches: TypeAlias = Callable[[Json], bool]


class InvalidSelector(ValueError):
    """A selector does not parse."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one key; the value of an absent label is ``None``.

    Attributes:
        key: a label key, or a dotted field path.
        values: the allowed values; ``None`` requires only that the key has a value.
        negated: whether the condition is reversed.
    """

    key: str
    values: tuple[str, ...] | None
    negated: bool = False

    def allows(self, found: str | None) -> bool:
        """Return whether the value *found* meets the condition."""
        hit = found is not None if self.values is None else found in self.values
        return hit != self.negated


_TERM = re.compile(r"(?P<key>[^=!,]+?)\s*(?P<op>==|!=|=)\s*(?P<value>[^=!,]*)\Z")


def parse_equality(text: str) -> tuple[Requirement, ...]:
    """Parse ``a=b,c!=d``; empty text selects everything.

    Raises:
        InvalidSelector: a term is neither ``key=value``, ``key==value`` nor ``key!=value``.
    """
    requirements = []
    for term in filter(None, (each.strip() for each in text.split(","))):
        match = _TERM.match(term)
        if match is None:
            raise InvalidSelector(f"unable to parse requirement: {term}: want key=value")
        requirements.append(Requirement(match["key"], (match["value"],), match["op"] == "!="))
    return tuple(requirements)


def field_value(obj: Json, path: str) -> str:
    """Return the value at a dotted path; "" if there is none, as in field selectors."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def by_fields(text: str) -> Matches:
    """Make a predicate from a field selector such as ``spec.nodeName=n1``."""
    requirements = parse_equality(text)
    return lambda obj: all(each.allows(field_value(obj, each.key)) for each in requirements)


def by_labels(text: str) -> Matches:
    """Make a predicate from an equality label selector such as ``app=demo,tier!=web``."""
    requirements = parse_equality(text)
    return lambda obj: labels_match(requirements, labels_of(obj))


def labels_of(obj: Json) -> Mapping[str, str]:
    """Return an object's labels, empty if it has none."""
    metadata = obj.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


def parse_label_selector(selector: Json | None) -> tuple[Requirement, ...]:
    """Parse a ``LabelSelector`` object (matchLabels, matchExpressions).

    Raises:
        InvalidSelector: an operator is unknown.
    """
    selector = selector or {}
    requirements = [
        Requirement(key, (value,)) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or ():
        operator = expression.get("operator")
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            raise InvalidSelector(f'"{operator}" is not a valid label selector operator')
        has_values = operator in ("In", "NotIn")
        requirements.append(
            Requirement(
                expression["key"],
                tuple(expression.get("values") or ()) if has_values else None,
                negated=operator in ("NotIn", "DoesNotExist"),
            )
        )
    return tuple(requirements)


def labels_match(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    """Return whether *labels* meet all *requirements*."""
    return all(each.allows(labels.get(each.key)) for each in requirements)
