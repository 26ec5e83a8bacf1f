"""ValidatingAdmissionPolicies as an API server decides by them, in CEL of another maker."""

from dataclasses import dataclass
from typing import Any

import celpy
from celpy.adapter import json_to_cel

from tests.deploy.manifests import Json


@dataclass(frozen=True)
class Update:
    """A request to change one object.

    Attributes:
        user: the name of who asks.
        old: the object before.
        new: the object after.
        subresource: such as ``status``; empty for the object itself.
        node: what the user's token says of the node it is on; none for ``None``.
    """

    user: str
    old: Json
    new: Json
    subresource: str = ""
    node: str | None = None

    def variables(self) -> Json:
        """Give what expressions may speak of."""
        user: Json = {"username": self.user}
        if self.node is not None:
            user["extra"] = {"authentication.kubernetes.io/node-name": [self.node]}
        request: Json = {"userInfo": user}
        if self.subresource:  # an API server leaves out what is empty
            request["subResource"] = self.subresource
        return {"object": self.new, "oldObject": self.old, "request": request}


def evaluate(expression: str, context: dict[str, Any]) -> Any:
    """Give what an expression comes to."""
    environment = celpy.Environment()
    return environment.program(environment.compile(expression)).evaluate(context)


def denials(policy: Json, update: Update) -> list[str]:
    """Give the messages of the validations that fail; none when the policy does not apply."""
    spec = policy["spec"]
    context = {key: json_to_cel(value) for key, value in update.variables().items()}
    if not all(evaluate(each["expression"], context) for each in spec["matchConditions"]):
        return []
    made = celpy.celtypes.MapType()
    context["variables"] = made
    for each in spec.get("variables", ()):
        made[json_to_cel(each["name"])] = evaluate(each["expression"], context)
    return [
        each["message"] for each in spec["validations"] if not evaluate(each["expression"], context)
    ]
