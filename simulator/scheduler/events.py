"""What happens in a cluster, as the scheduler's queue is told of it. Pure.

``pkg/scheduler/framework/events.go`` names the events; a plugin that rejected a pod says
which of them may change its mind. An extender cannot say so: any event may (fact K25).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.client import Json
from simulator.scheduler.fit import pod_requests

EXTENDER = "Extender"
"""The name under which a rejection by an extender is remembered."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a node, or to a pod that has one."""

    resource: str
    action: str


NODE_ADD = Event("Node", "Add")
NODE_DELETE = Event("Node", "Delete")
POD_ADD = Event("AssignedPod", "Add")
POD_DELETE = Event("AssignedPod", "Delete")

_TOLD: dict[str, frozenset[Event]] = {
    "NodeUnschedulable": frozenset({NODE_ADD, Event("Node", "UpdateNodeTaint")}),
    "NodeAffinity": frozenset({NODE_ADD, Event("Node", "UpdateNodeLabel")}),
    "NodeResourcesFit": frozenset(
        {
            NODE_ADD,
            Event("Node", "UpdateNodeAllocatable"),
            POD_DELETE,
            Event("AssignedPod", "UpdatePodScaleDown"),
            Event("UnscheduledPod", "UpdatePodScaleDown"),
        }
    ),
}


def interests(plugin: str, event: Event) -> bool:
    """Return whether *event* may help a pod that *plugin* rejected."""
    return plugin == EXTENDER or event in _TOLD.get(plugin, ())


def node_events(old: Json, new: Json) -> Sequence[Event]:
    """Return the events that an update of a node makes; a heartbeat makes none."""
    before, after = old.get("spec") or {}, new.get("spec") or {}
    freed = before.get("unschedulable") and not after.get("unschedulable")
    changed = {
        "UpdateNodeAllocatable": _status(old, "allocatable") != _status(new, "allocatable"),
        "UpdateNodeLabel": _metadata(old, "labels") != _metadata(new, "labels"),
        "UpdateNodeTaint": freed or before.get("taints") != after.get("taints"),
        "UpdateNodeCondition": _conditions(old) != _conditions(new),
        "UpdateNodeAnnotation": _metadata(old, "annotations") != _metadata(new, "annotations"),
    }
    return [Event("Node", action) for action, happened in changed.items() if happened]


def pod_events(old: Json, new: Json) -> Sequence[Event]:
    """Return the events that an update of a pod makes, at least the general one."""
    resource = "AssignedPod" if (new.get("spec") or {}).get("nodeName") else "UnscheduledPod"
    before, after = pod_requests(old), pod_requests(new)
    gates = "schedulingGates"
    changed = {
        "UpdatePodLabel": _metadata(old, "labels") != _metadata(new, "labels"),
        "UpdatePodScaleDown": any(after[name] < count for name, count in before.items()),
        "UpdatePodSchedulingGatesEliminated": bool(old["spec"].get(gates))
        and not new["spec"].get(gates),
        "UpdatePodToleration": len(old["spec"].get("tolerations") or ())
        != len(new["spec"].get("tolerations") or ()),
    }
    made = [Event(resource, action) for action, happened in changed.items() if happened]
    return made or [Event(resource, "Update")]


def _metadata(obj: Json, field: str) -> Json:
    return obj["metadata"].get(field) or {}


def _status(obj: Json, field: str) -> Json:
    return (obj.get("status") or {}).get(field) or {}


def _conditions(node: Json) -> dict[str, str]:
    found = (node.get("status") or {}).get("conditions") or ()
    return {each["type"]: each.get("status", "") for each in found}
