"""Read fields of API objects, for the demo."""

from typing import Any

from simulator.manifests import Json


def phase(pod: Json) -> str:
    """Return a pod's phase; ``Pending`` if a new pod has none yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def annotations(obj: Json) -> dict[str, Any]:
    """Return an object's annotations."""
    found: dict[str, Any] = obj["metadata"].get("annotations") or {}
    return found


def node_of(pod: Json) -> str:
    """Return the node of a pod; empty for none."""
    return str(pod["spec"].get("nodeName") or "")


def path_of(pod: Json) -> str:
    """Return the API path of a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def why_unbound(pod: Json) -> str:
    """Return why a pod fits no node; empty if the scheduler has not reported that.

    Other scheduling errors are not returned: the scheduler tries these pods again by itself.
    """
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next(
        (str(each["message"]) for each in conditions if each.get("reason") == "Unschedulable"), ""
    )
