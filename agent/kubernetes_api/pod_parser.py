"""From a pod object of the API server to what the allocator knows of a pod."""

from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any

from agent.allocator.model.pod_view import PodId, PodView, QueuePosition
from contract.demand import ContainerKind, PodDemand
from contract.errors import ContractError
from contract.names import Names
from contract.pod_annotations import read_allocations, read_choice, valid_allocations
from contract.requests import read_pod_demand
from contract.stamps import OrderStamp, decode_time
from contract.wishes import read_wishes

_MIRROR, _STATIC_UID = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
_TERMINAL = frozenset({"Succeeded", "Failed"})


def parse_pod(obj: Mapping[str, Any], names: Names) -> PodView:
    """Read a pod object of the API server.

    What a hostile or foreign writer may have put into annotations is checked; what the
    API server itself guarantees (metadata, types of the spec) is relied upon.
    """
    metadata = obj["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    faults: list[str] = []
    created = _unix_ns(metadata.get("creationTimestamp"))
    bound = _stamp(annotations.get(names.bind_order), faults)
    admitted = _stamp(annotations.get(names.admission_order), faults)
    time_ns = _first_time(bound, annotations.get(names.predicate_time), admitted, faults)
    spec = obj.get("spec") or {}
    demand, _ = read_pod_demand(spec, names)
    uid = metadata.get("uid", "")
    phase = (obj.get("status") or {}).get("phase")
    written = read_allocations(annotations, names, faults)
    annotated = valid_allocations(written, demand, names, faults)
    wishes, wrong = read_wishes(annotations, names)
    faults += map(str, wrong)
    return PodView(
        id=PodId(metadata.get("namespace", ""), metadata.get("name", ""), uid),
        demand=demand,
        # The best time known stands in for a missing stamp, so that pods with and without
        # stamps are in one order.
        position=QueuePosition(
            time_ns or created,
            bound.encode() if bound else "",
            admitted.encode() if admitted else "",
            created,
            uid,
        ),
        terminal=phase in _TERMINAL,
        running=phase == "Running",
        annotated=annotated,
        wishes=wishes,
        chosen=read_choice(annotations, demand, written, names, faults),
        # The API server lets nobody but a kubelet make a mirror pod.
        runtime_uid=annotations.get(_STATIC_UID, uid) if _MIRROR in annotations else uid,
        mains=frozenset(each.get("name", "") for each in spec.get("containers") or ()),
        sidecars=frozenset(
            each.get("name", "")
            for each in spec.get("initContainers") or ()
            if each.get("restartPolicy") == "Always"
        ),
        faults=tuple(faults),
    )


def _stamp(text: str | None, faults: list[str]) -> OrderStamp | None:
    if text is None:
        return None
    try:
        return OrderStamp.decode(text)
    except ContractError as error:
        faults.append(str(error))
        return None


def _first_time(
    bound: OrderStamp | None, predicate: str | None, admitted: OrderStamp | None, faults: list[str]
) -> int:
    if bound is not None:
        return bound.time_ns
    if predicate is not None:
        try:
            return decode_time(predicate)
        except ContractError as error:
            faults.append(str(error))
    return admitted.time_ns if admitted is not None else 0


def is_complete(demand: PodDemand, allocations: Container[str]) -> bool:
    """Return whether these are all of a pod's containers.

    An ordinary init container may be missing once a later container is there: nobody can
    tell any more what it got (fact K4). A pod that asks for nothing has no allocation.
    """
    missing = [each for each in demand.containers if each.name not in allocations]
    if not missing:
        return bool(demand)
    others = any(each.kind is not ContainerKind.INIT for each in demand.containers)
    return others and all(each.kind is ContainerKind.INIT for each in missing)


def _unix_ns(rfc3339: str | None) -> int:
    """Read a creation time; whole seconds are all that Kubernetes keeps."""
    if not rfc3339:
        return 0
    return int(datetime.fromisoformat(rfc3339).timestamp()) * 1_000_000_000
