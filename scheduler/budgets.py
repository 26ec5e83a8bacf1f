"""Reads PodDisruptionBudgets: which pods one covers, and how many may be evicted now. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from placement.cluster.selectors import fulfils, read_expressions

Json = Mapping[str, Any]


class DisruptionBudget(NamedTuple):
    """One PodDisruptionBudget.

    Attributes:
        namespace: its namespace, whose pods it covers.
        name: its name.
        selector: its label selector; ``None`` selects nothing, an empty one all.
        allowed: how many pods the Eviction API would evict now.
    """

    namespace: str
    name: str
    selector: Json | None
    allowed: int

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    def covers(self, namespace: str, labels: Json) -> bool:
        """Return whether it covers a pod."""
        return (
            namespace == self.namespace
            and self.selector is not None
            and matches(self.selector, labels)
        )


def read_budgets(items: Iterable[Json]) -> list[DisruptionBudget]:
    """Read the objects of a list.

    One that the API server has not looked at since its last change allows nothing, as with the
    Eviction API.
    """
    return [
        DisruptionBudget(
            metadata.get("namespace", ""),
            metadata["name"],
            (each.get("spec") or {}).get("selector"),
            (status.get("disruptionsAllowed") or 0)
            if (status.get("observedGeneration") or 0) >= (metadata.get("generation") or 0)
            else 0,
        )
        for each in items
        for metadata, status in ((each["metadata"], each.get("status") or {}),)
    ]


def matches(selector: Json, labels: Json) -> bool:
    """Return whether a label selector selects a pod (``meta/v1``)."""
    equal = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in equal.items()) and all(
        fulfils(labels, each) for each in read_expressions(selector.get("matchExpressions"))
    )  # an operator that we do not know protects the pod
