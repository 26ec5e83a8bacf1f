"""CEL expressions of ``matchConditions``. The only module that imports celpy.

celpy knows the language, not Kubernetes' extensions of it: optional fields (``?.``)
and the ``quantity`` library do not parse here, ``authorizer`` is not defined.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

import celpy
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType
from celpy.evaluation import CELEvalError

from simulator.api.resources import Json

Condition: TypeAlias = Callable[[Mapping[str, Json | None]], bool]


class InvalidExpression(ValueError):
    """An expression does not parse."""


class EvaluationError(Exception):
    """An expression has no answer for this object."""


@lru_cache(maxsize=256)
def compile_condition(expression: str) -> Condition:
    """Compile an expression that answers yes or no.

    Raises:
        InvalidExpression: it does not parse.
    """
    environment = celpy.Environment()
    try:
        program = environment.program(environment.compile(expression))
    except CELParseError as error:
        raise InvalidExpression(f"compilation failed: {error}") from error

    def evaluate(variables: Mapping[str, Json | None]) -> bool:
        try:
            answer = program.evaluate(
                {name: json_to_cel(value) for name, value in variables.items()}
            )
        except CELEvalError as error:
            raise EvaluationError(
                f"expression '{expression}' resulted in error: {error}"
            ) from error
        if not isinstance(answer, BoolType):
            raise EvaluationError(f"expression '{expression}' must evaluate to bool")
        return bool(answer)

    return evaluate
