"""Which node has room for a pod. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from contract.quantity import parse_quantity
from simulator.client import Json


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod cannot be on a node.

    Attributes:
        plugin: who says so, by the name of kube-scheduler's plugin.
        reasons: in the words of kube-scheduler.
        resolvable: whether fewer pods on the node could help.
    """

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool


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


def pod_containers(pod: Json) -> Sequence[Json]:
    """Return all containers of a pod, init containers first."""
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


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
    names = ((node["metadata"]["name"], node) for node in nodes)
    return sorted(
        name for name, node in names if not rejection(node, pod, used.get(name, Counter()))
    )


def rejection(
    node: Json, pod: Json, used: Counter[str], ignored: Collection[str] = ()
) -> Rejection | None:
    """Return why a pod cannot be on a node, or ``None`` where it fits.

    Args:
        node: the node.
        pod: the pod.
        used: what is taken on the node.
        ignored: resources that are somebody else's business (``ignoredByScheduler``).
    """
    if (node.get("spec") or {}).get("unschedulable"):
        return Rejection("NodeUnschedulable", ("node(s) were unschedulable",), resolvable=False)
    labels = node["metadata"].get("labels") or {}
    wanted = (pod.get("spec") or {}).get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        reason = "node(s) didn't match Pod's node affinity/selector"
        return Rejection("NodeAffinity", (reason,), resolvable=False)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    missing = {
        resource: count > _count(allocatable.get(resource))
        for resource, count in sorted(pod_requests(pod).items())
        if resource not in ignored and used[resource] + count > _count(allocatable.get(resource))
    }
    if not missing:
        return None
    reasons = tuple(f"Insufficient {resource}" for resource in missing)
    return Rejection("NodeResourcesFit", reasons, resolvable=not any(missing.values()))


def _requests(container: Json) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return Counter(
        {name: _count(value) for name, value in asked.items() if "/" in name and _count(value) > 0}
    )


def _count(value: object) -> int:
    return int(parse_quantity(value) or 0)
