"""What the demo reads of objects of the API server."""

from typing import Any

from simulator.manifests import Json


def phase(pod: Json) -> str:
    """Return a pod's phase; new pods have none yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def annotations(obj: Json) -> dict[str, Any]:
    """Return an object's annotations."""
    found: dict[str, Any] = obj["metadata"].get("annotations") or {}
    return found


def node_of(pod: Json) -> str:
    """Return the node a pod is bound to; empty for none."""
    return str(pod["spec"].get("nodeName") or "")


def path_of(pod: Json) -> str:
    """Return where the API server has a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def why_unbound(pod: Json) -> str:
    """Return why all nodes were rejected for a pod; empty while nobody has said so.

    What went wrong is tried again: only a rejection by all nodes is for longer.
    """
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next(
        (str(each["message"]) for each in conditions if each.get("reason") == "Unschedulable"), ""
    )
