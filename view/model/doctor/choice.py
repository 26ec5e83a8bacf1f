"""Which nodes a DaemonSet chooses, by ``nodeSelector`` and required node affinity."""

from collections.abc import Mapping, Sequence
from typing import Any


def chooses(pod: Mapping[str, Any], node: str, labels: Mapping[str, str]) -> bool:
    """Tell whether pods of this template may run on a node; taints are not looked at.

    Args:
        pod: the ``spec`` of the template.
        node: the name of the node.
        labels: of the node.
    """
    wanted = pod.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(
        _matches(term, node, labels) for term in required.get("nodeSelectorTerms") or ()
    )


def _matches(term: Mapping[str, Any], node: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:  # an empty term matches no node
        return False
    return all(_holds(each, labels) for each in expressions) and all(
        _holds(each, {"metadata.name": node}) for each in fields
    )


def _holds(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    values: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise ValueError(f"the operator {requirement['operator']}")
