"""By what a pod chooses nodes besides GPUs, as far as it can be told without a scheduler. Pure.

As kube-scheduler's NodeUnschedulable, NodeAffinity and TaintToleration decide. CPU, memory,
ports, volumes, spreading and affinity between pods are not looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})
_MOST_KNOWN, _LONGEST_KNOWN = 4096, 4096
_KNOWN: "dict[str, Constraints]" = {}
"""By what the spec says, as text."""
_MAPPINGS = (dict, Mapping)  # an abstract class is slow to ask


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that keeps pods out."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Write as ``kubectl taint`` does."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """What pods choose a node by.

    Attributes:
        name: its name.
        labels: key and value, sorted.
        taints: those that keep pods out.
        cordoned: whether it is marked unschedulable.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that a pod does not mind; empty fields match all."""

    key: str
    operator: str
    value: str
    effect: str

    def covers(self, taint: Taint) -> bool:
        """Return whether the taint does not matter (``ToleratesTaint`` of ``k8s.io/api``)."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Expression:
    """One condition on a label, or on a node's name."""

    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, found: str | None) -> bool:  # noqa: PLR0911 -- one line an operator
        """Decide about the label's value; ``None`` where the node has no such label."""
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                try:
                    there, wanted = int(found or ""), int(self.values[0])
                except (ValueError, IndexError):
                    return False
                return there > wanted if self.operator == "Gt" else there < wanted
            case _:
                return False


Term = tuple[tuple[Expression, ...], tuple[Expression, ...]]
"""Conditions on labels and on names, which must all hold; a term without any matches no node."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """By what a pod chooses nodes.

    Attributes:
        selector: labels that a node must have.
        terms: required node affinity, one of which must match; ``None`` for no such rule.
        tolerations: taints that it does not mind.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def keep_from(self, node: NodeTraits) -> str:
        """Return why the pod is not put on a node; empty where nothing known forbids it."""
        for label in self.lacking(node):
            return f"node selector {label} does not match"
        if not self.affinity_matches(node):
            return "required node affinity does not match"
        return next(iter(self.closed_by(node)), "")

    def lacking(self, node: NodeTraits) -> list[str]:
        """Return labels of the node selector that a node does not have."""
        labels = dict(node.labels) if self.selector else {}
        return [f"{key}={value}" for key, value in self.selector if labels.get(key) != value]

    def affinity_matches(self, node: NodeTraits) -> bool:
        """Decide about the required node affinity."""
        if self.terms is None:
            return True
        labels = dict(node.labels)
        return any(
            (on_labels or on_names)
            and all(each.holds(labels.get(each.key)) for each in on_labels)
            and all(each.key == "metadata.name" and each.holds(node.name) for each in on_names)
            for on_labels, on_names in self.terms
        )

    def closed_by(self, node: NodeTraits) -> list[str]:
        """Return everything by which a node takes no pods, or not this one."""
        found = []
        if node.cordoned and not self._tolerates(Taint(_UNSCHEDULABLE, "", "NoSchedule")):
            found.append("the node is cordoned")
        taints = [each for each in node.taints if not self._tolerates(each)]
        return [*found, *(f"taint {each} is not tolerated" for each in taints)]

    def _tolerates(self, taint: Taint) -> bool:
        return any(each.covers(taint) for each in self.tolerations)


def read_traits(obj: Mapping[str, Any]) -> NodeTraits:
    """Read what pods choose a node by, from a node object."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    taints = tuple(
        Taint(each.get("key", ""), each.get("value") or "", each.get("effect", ""))
        for each in spec.get("taints") or ()
        # Cordoning is told apart; the taint comes with it.
        if each.get("effect") in _KEEPS_OUT and each.get("key") != _UNSCHEDULABLE
    )
    labels = tuple(sorted((metadata.get("labels") or {}).items()))
    return NodeTraits(metadata["name"], labels, taints, bool(spec.get("unschedulable")))


def read_constraints(spec: Mapping[str, Any]) -> Constraints:
    """Read by what a pod chooses nodes, from a pod's spec; what cannot be read is not said."""
    told = tuple(spec.get(each) for each in ("nodeSelector", "affinity", "tolerations"))
    key = repr(told)  # most pods say nothing of it but the two tolerations that all get
    if len(key) > _LONGEST_KNOWN:  # a pod may say a megabyte of it
        return _read(spec)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = _read(spec)
    return found


def _read(spec: Mapping[str, Any]) -> Constraints:
    selector = mapping(spec.get("nodeSelector"))
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None
    if required is not None:
        terms = tuple(
            (_expressions(each.get("matchExpressions")), _expressions(each.get("matchFields")))
            for each in _mappings(mapping(required).get("nodeSelectorTerms"))
        )
    tolerations = tuple(
        Toleration(*(text(each.get(field)) for field in ("key", "operator", "value", "effect")))
        for each in _mappings(spec.get("tolerations"))
    )
    return Constraints(
        tuple(sorted((str(key), str(value)) for key, value in selector.items())),
        terms,
        tolerations,
    )


def _expressions(listed: object) -> tuple[Expression, ...]:
    return tuple(
        Expression(
            text(each.get("key")),
            text(each.get("operator")),
            tuple(map(str, _list(each.get("values")))),
        )
        for each in _mappings(listed)
    )


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else."""
    return value if isinstance(value, _MAPPINGS) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return map(mapping, _list(value))


def text(value: object) -> str:
    """Return a text as it is, and an empty one for anything else."""
    return value if isinstance(value, str) else ""
