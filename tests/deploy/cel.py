"""CEL expressions of ``matchConditions`` and of policies, evaluated. The only importer of celpy.

celpy knows the language; of Kubernetes' own functions (``apiserver/pkg/cel/library``) those that
our policies use are added at the end. Optional fields (``?.``) do not parse here, ``authorizer``,
``params`` and ``namespaceObject`` are not defined, and nothing has a cost limit.
"""

import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import celpy
from celpy.adapter import json_to_cel
from celpy.celtypes import BoolType, IntType, ListType, MapType, StringType
from celpy.evaluation import CELEvalError

from contract.quantity import parse_quantity
from tests.deploy.manifests import Json

Scope: TypeAlias = Mapping[str, Any]
"""The variables of an expression, as values of celpy."""


# celpy raises it when an environment is made, which no later test expects.
sys.setrecursionlimit(max(2500, sys.getrecursionlimit()))


class _NoType:
    """Stands for a generic type in a ``cast`` of the evaluator: these take 40 % of its time."""

    def __getitem__(self, _: object) -> None: ...


for each in ("Callable", "Dict", "Iterable", "List", "Optional", "Tuple", "Union"):
    setattr(celpy.evaluation, each, _NoType())


class EvaluationError(Exception):
    """An expression has no result for this object."""


def condition_holds(expression: str, obj: Json) -> bool:
    return holds(expression, scope_of({"object": obj}))


def scope_of(
    objects: Mapping[str, Json | None], variables: Mapping[str, str] | None = None
) -> Scope:
    """Return the variables of expressions; *variables* are a policy's own expressions."""
    scope = {name: json_to_cel(value) for name, value in objects.items()}
    if variables is not None:
        scope["variables"] = _Variables(variables, scope)
    return scope


def holds(expression: str, scope: Scope) -> bool:
    """Evaluate an expression with a boolean result."""
    result = _run(expression, scope)
    if not isinstance(result, BoolType):
        raise EvaluationError(f"expression '{expression}' must evaluate to bool")
    return bool(result)


def text_of(expression: str, scope: Scope) -> str:
    """Evaluate an expression with a text as result; empty if it has none."""
    try:
        made = _run(expression, scope)
    except EvaluationError:
        return ""
    return str(made) if isinstance(made, str) else ""


class _Variables(MapType):
    """A policy's variables: each is evaluated once, at its first use."""

    def __init__(self, expressions: Mapping[str, str], scope: dict[str, Any]) -> None:
        super().__init__()
        self._expressions = expressions
        self._scope = scope

    def __getitem__(self, name: Any) -> Any:
        if name not in self:
            expression = self._expressions[str(name)]
            self[name] = _run(expression, self._scope)
        return super().__getitem__(name)


@cache
def _environment() -> celpy.Environment:
    """Make the grammar's parser, which takes a third of a second: not every test needs it."""
    return celpy.Environment()


@lru_cache(maxsize=256)
def _compile(expression: str) -> celpy.Runner:
    language = _environment()
    return language.program(language.compile(expression), functions=dict(_FUNCTIONS))


def _run(expression: str, scope: Scope) -> Any:
    try:
        return _compile(expression).evaluate(dict(scope))
    except CELEvalError as error:
        raise EvaluationError(f"expression '{expression}' resulted in error: {error}") from error


_INT64 = range(-(2**63), 2**63)


def _quantity(text: StringType) -> Fraction:
    number = parse_quantity(str(text))
    if number is None:
        raise ValueError(f"{text} is no quantity")
    return Fraction(number)


def _is_integer(quantity: Fraction) -> BoolType:
    return BoolType(quantity.denominator == 1 and quantity.numerator in _INT64)


def _as_integer(quantity: Fraction) -> IntType:
    if not _is_integer(quantity):
        raise ValueError("cannot convert value to integer")
    return IntType(quantity.numerator)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "isInteger": _is_integer,
    "asInteger": _as_integer,
    "compareTo": lambda one, other: IntType((one > other) - (one < other)),
    "isSorted": lambda values: BoolType(all(one <= other for one, other in pairwise(values))),
    "lowerAscii": lambda text: StringType(str(text).lower()),
    "join": lambda texts, separator="": StringType(str(separator).join(map(str, texts))),
    "replace": lambda text, old, new: StringType(str(text).replace(str(old), str(new))),
    "split": lambda text, separator: ListType(map(StringType, str(text).split(str(separator)))),
}
