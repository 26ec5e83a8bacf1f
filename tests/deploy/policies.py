"""ValidatingAdmissionPolicies as the simulated API server decides by them."""

from dataclasses import dataclass, field

from simulator.api.policies import Asked, refusals
from simulator.api.resources import PODS, Target, resource_of_kind
from simulator.api.webhooks import Operation
from tests.deploy.manifests import Json


@dataclass(frozen=True)
class Update:
    """A request about one object.

    Attributes:
        user: the name of who asks.
        old: the object before; empty for none.
        new: the object after.
        subresource: such as ``status``; empty for the object itself.
        node: what the user's token says of the node it is on; none for ``None``.
        operation: what is done.
        namespace: the object's; empty for what has none.
    """

    user: str
    old: Json
    new: Json
    subresource: str = ""
    node: str | None = None
    operation: Operation = "UPDATE"
    namespace: str = field(default="default")

    def asked(self) -> Asked:
        """Give it as policies see it."""
        user: Json = {"username": self.user}
        if self.node is not None:
            user["extra"] = {"authentication.kubernetes.io/node-name": [self.node]}
        review: Json = {"userInfo": user, "object": self.new, "oldObject": self.old or None}
        if self.subresource:  # an API server leaves out what is empty
            review["subResource"] = self.subresource
        resource = resource_of_kind("v1", self.new.get("kind", "Pod")) or PODS
        labels = {"kubernetes.io/metadata.name": self.namespace} if resource.namespaced else None
        target = Target(resource, self.namespace if labels else "", "p", self.subresource)
        return Asked(target, self.operation, labels, review)


def denials(policy: Json, update: Update) -> list[str]:
    """Give the messages of the validations that fail; none when the policy does not apply."""
    name = policy["metadata"]["name"]
    spec = {"policyName": name, "validationActions": ["Deny"]}
    binding = {"metadata": {"name": name}, "spec": spec}
    return [each.message for each in refusals([policy], [binding], update.asked())]
