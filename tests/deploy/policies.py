"""Evaluates ValidatingAdmissionPolicies; ``tests/e2e`` sends the same to a real API server."""

from dataclasses import dataclass, field

from simulator.api.resources import PODS, RequestTarget, resource_of_kind
from simulator.api.selectors import labels_match, parse_label_selector
from simulator.api.webhooks import Operation, rule_matches
from tests.deploy.cel import EvaluationError, holds, scope_of, text_of
from tests.deploy.manifests import Json


@dataclass(frozen=True)
class Update:
    """A request about one object, which *old* does not have if it is new.

    *node* is the one in the user's token. For ``DELETE``, *new* is what is deleted.
    """

    user: str
    old: Json
    new: Json
    subresource: str = ""
    node: str | None = None
    operation: Operation = "UPDATE"
    namespace: str = field(default="default")

    def target(self) -> RequestTarget:
        named = self.new.get("apiVersion", "v1"), self.new.get("kind", "Pod")
        resource = resource_of_kind(*named) or PODS
        return RequestTarget(
            resource, self.namespace if resource.namespaced else "", "p", self.subresource
        )

    def objects(self) -> Json:
        """Return the variables of expressions."""
        user: Json = {"username": self.user}
        if self.node is not None:
            user["extra"] = {"authentication.kubernetes.io/node-name": [self.node]}
        deleted = self.operation == "DELETE"
        new, old = (None, self.new) if deleted else (self.new, self.old or None)
        request: Json = {"userInfo": user, "operation": self.operation}
        if self.subresource:  # an API server leaves out what is empty
            request["subResource"] = self.subresource
        request |= {"object": new, "oldObject": old}
        return {"object": new, "oldObject": old, "request": request}


def denials(policy: Json, update: Update) -> list[str]:
    """Return the messages of the validations that fail; none if the policy does not apply.

    An expression without a result fails, unless the policy's failurePolicy is Ignore.
    """
    spec = policy["spec"]
    if not _applies(spec["matchConstraints"], update):
        return []
    objects = update.objects()
    for each in spec.get("matchConditions") or ():
        if not holds(each["expression"], scope_of(objects)):
            return []
    variables = {each["name"]: each["expression"] for each in spec.get("variables") or ()}
    scope = scope_of(objects, variables)
    found = []
    for each in spec["validations"]:
        try:
            if not holds(each["expression"], scope):
                found.append(
                    text_of(each.get("messageExpression") or "''", scope) or each["message"]
                )
        except EvaluationError as error:
            if spec["failurePolicy"] == "Fail":
                found.append(str(error))
    return found


def _applies(wanted: Json, update: Update) -> bool:
    target = update.target()
    rules = wanted["resourceRules"]
    if not any(rule_matches(rule, target, update.operation) for rule in rules):
        return False
    labels = {"kubernetes.io/metadata.name": target.namespace}
    selector = parse_label_selector(wanted.get("namespaceSelector"))
    return not target.namespace or labels_match(selector, labels)
