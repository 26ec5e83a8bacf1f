"""How NodeResourcesFit scores nodes: by what is free on them, or by what is taken. Pure.

``pkg/scheduler/framework/plugins/noderesources``. Containers that ask for no CPU or memory
count as if they asked for a little, so that nodes with many of them score as fuller.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from contract.quantity import parse_quantity
from simulator.client import Json
from simulator.scheduler.fit import pod_requests

MAX_NODE_SCORE = 100
_ASSUMED = {"cpu": 100, "memory": 200 << 20}  # thousandths of a CPU, bytes


def scored_requests(pod: Json) -> Counter[str]:
    """Return what a pod counts as: extended resources, thousandths of CPUs, bytes."""
    requests = pod_requests(pod)
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
        for resource, assumed in _ASSUMED.items():
            found = _amount(resource, asked[resource]) if resource in asked else assumed
            requests[resource] += found
    return requests


def score(
    pod: Json,
    node: Json,
    taken: Iterable[Json],
    resources: Sequence[tuple[str, int]],
    *,
    most_allocated: bool = False,
) -> int:
    """Return 0 to 100 for a node.

    Args:
        pod: the pod to place.
        node: the node.
        taken: the pods on it.
        resources: what counts, and its weight.
        most_allocated: prefer full nodes.
    """
    asked, used = scored_requests(pod), Counter[str]()
    for each in taken:
        used += scored_requests(each)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    total = weights = 0
    for resource, weight in resources:
        capacity = _amount(resource, allocatable.get(resource, 0))
        if not capacity or ("/" in resource and not asked[resource]):
            continue
        full = min(used[resource] + asked[resource], capacity)
        part = full if most_allocated else capacity - full
        total += part * MAX_NODE_SCORE // capacity * weight
        weights += weight
    return total // weights if weights else 0


def _amount(resource: str, quantity: object) -> int:
    found = parse_quantity(quantity) or 0
    return int(found * 1000) if resource == "cpu" else int(found)
