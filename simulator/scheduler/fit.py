"""Which node has room for a pod. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from contract.quantity import parse_quantity
from simulator.client import Json


def pod_requests(pod: Json) -> Counter[str]:
    """Return what a pod takes of each extended resource.

    Ordinary init containers run one at a time, each beside the sidecars that started
    before it; afterwards the containers run beside all sidecars. The pod needs whichever
    is more (``resourcehelper.PodRequests``).
    """
    spec = pod.get("spec") or {}
    running: Counter[str] = Counter()  # sidecars so far
    largest: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            running += asked
            largest |= running
        else:
            largest |= running + asked
    for container in spec.get("containers") or ():
        running += _requests(container)
    return largest | running


def is_terminal(pod: Json) -> bool:
    """Return whether a pod has ended, so that it takes nothing any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def node_of(pod: Json) -> str:
    """Return the node a pod is bound to, empty when none."""
    return (pod.get("spec") or {}).get("nodeName") or ""


def waits(pod: Json) -> bool:
    """Return whether a pod waits for a node."""
    spec = pod.get("spec") or {}
    return not (
        node_of(pod)
        or is_terminal(pod)
        or pod["metadata"].get("deletionTimestamp")
        or spec.get("schedulingGates")
    )


def used_by_node(pods: Iterable[tuple[str, Json]]) -> dict[str, Counter[str]]:
    """Add up what is taken on each node.

    Args:
        pods: node name and pod, of every pod that is bound or about to be.
    """
    used: dict[str, Counter[str]] = {}
    for node, pod in pods:
        if not is_terminal(pod):
            used.setdefault(node, Counter()).update(pod_requests(pod))
    return used


def fitting_nodes(
    pod: Json, nodes: Iterable[Json], used: Mapping[str, Counter[str]]
) -> Sequence[str]:
    """Return the names of the nodes that have room, in alphabetical order."""
    asked = pod_requests(pod)
    wanted = (pod.get("spec") or {}).get("nodeSelector") or {}
    return sorted(
        node["metadata"]["name"] for node in nodes if _has_room(node, asked, wanted, used)
    )


def _has_room(
    node: Json, asked: Counter[str], wanted: Json, used: Mapping[str, Counter[str]]
) -> bool:
    if (node.get("spec") or {}).get("unschedulable"):
        return False
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    taken = used.get(metadata["name"], Counter())
    return all(
        taken[resource] + count <= _count(allocatable.get(resource))
        for resource, count in asked.items()
    )


def _requests(container: Json) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return Counter(
        {name: _count(value) for name, value in asked.items() if "/" in name and _count(value) > 0}
    )


def _count(value: object) -> int:
    return int(parse_quantity(value) or 0)
