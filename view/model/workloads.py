"""Whether a workload still wants pods: if not, a denial of its pods is history. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

CONTROLLERS = ("DaemonSet", "Job", "ReplicaSet", "ReplicationController", "StatefulSet")
"""The kinds of Kubernetes' own controllers of pods."""


@dataclass(frozen=True, slots=True)
class DeniedWorkload:
    """A workload of which an Event reports that its pods are denied."""

    kind: Annotated[str, "such as ``ReplicaSet``."]
    namespace: Annotated[str, "its namespace."]
    name: Annotated[str, "its name."]
    uid: Annotated[str, "its UID, as the Event has it."]
    at: Annotated[str, "time of the last denial."]


def wants_pods(denied: DeniedWorkload, found: Mapping[str, Any] | None) -> bool:
    """Return whether a workload still wants more pods than it has.

    Args:
        denied: the workload when its pods were denied.
        found: the object that has its name now; ``None`` if there is none.
    """
    if found is None or found["metadata"].get("uid") != denied.uid:
        return False
    if found["metadata"].get("deletionTimestamp"):
        return False
    spec, status = found.get("spec") or {}, found.get("status") or {}
    match denied.kind:
        case "Job":
            conditions = status.get("conditions") or ()
            ended = {each.get("type") for each in conditions if each.get("status") == "True"}
            return not spec.get("suspend") and ended.isdisjoint(("Complete", "Failed"))
        case "DaemonSet":
            return bool(status.get("desiredNumberScheduled"))
    wanted = spec.get("replicas")
    return int(status.get("replicas") or 0) < (1 if wanted is None else int(wanted))
