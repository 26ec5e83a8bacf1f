"""Compare a pod's requests with the free resources of a node, as counts (K24). Pure."""

from collections.abc import Mapping, Sequence

from contract.quantity import parse_quantity
from simulator.client import Json
from simulator.kubelet.pods import Pod, requests_of


def reasons_against(node: Json, pod: Pod, used: Mapping[str, int]) -> Sequence[str]:
    """Return why *pod* does not fit *node*, in kube-scheduler's words; empty if it fits.

    Args:
        node: the Node object.
        pod: the pod.
        used: the amount that pods on the node request, by extended resource.
    """
    if (node.get("spec") or {}).get("unschedulable"):
        return ("node(s) were unschedulable",)
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in pod.node_selector.items()):
        return ("node(s) didn't match Pod's node affinity/selector",)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return [
        f"Insufficient {resource}"
        for resource, count in sorted(requests_of(pod).items())
        if count
        and used.get(resource, 0) + count > int(parse_quantity(allocatable.get(resource)) or 0)
    ]
