"""What a container, or a whole pod, has got, by the record."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeAlias

from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.grant import Grant, translate
from agent.allocator.model.tickets import DeviceTable
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of
from placement.pods import PodId, PodInfo


class Holdings(Protocol):
    """Who holds what."""

    def holding(self, ref: ContainerRef, resource: Resource) -> frozenset[str] | None:
        """Return what a container holds."""
        ...


def grant_of(table: DeviceTable, resource: Resource, held: frozenset[str] | None) -> Grant | None:
    """Translate what a container holds of *resource*; ``None`` when it holds none.

    Raises:
        GrantError: what it holds makes no sense.
    """
    return None if held is None else translate(resource, table.read(resource, held))


EvidenceOf: TypeAlias = Callable[[ContainerRef, Resource], Evidence]


def allocations_of(
    record: Holdings, table: DeviceTable, view: PodInfo, *, evidence: EvidenceOf
) -> dict[str, Allocation] | None:
    """Return what each container of a pod got, once all of them have all they ask for.

    An ordinary init container of which nothing is known does not keep a pod waiting when a later
    container has been served: without the checkpoint nobody can tell what it got (K4).

    Returns:
        Container name -> allocation; ``None`` while something is missing.
    """
    found: dict[str, Allocation] = {}
    for container in view.demand.containers:
        allocation = _allocation(record, table, view.id, container, evidence)
        if allocation is not None:
            found[container.name] = allocation
        elif container.kind is not ContainerKind.INIT or not _is_followed(record, view, container):
            return None
    return found


def is_news(found: Mapping[str, Allocation], annotated: Mapping[str, Allocation]) -> bool:
    """Return whether *found* says something that the pod's allocation annotation does not.

    Evidence that is only newer is no news: an agent that was restarted has everything from the
    kubelet's record. A guess by order that was proven is.
    """
    for name, new in found.items():
        old = annotated.get(name)
        if old is None or replace(old, evidence=new.evidence) != new:
            return True
        if old.evidence is Evidence.ORDER and new.evidence is not Evidence.ORDER:
            return True
    return False


def _is_followed(record: Holdings, view: PodInfo, init: ContainerDemand) -> bool:
    """Return whether a container after *init* holds something."""
    after = view.demand.containers[view.demand.containers.index(init) + 1 :]
    return any(
        record.holding(ContainerRef(view.id, each.name), resource)
        for each in after
        for resource in Resource
    )


def _allocation(
    record: Holdings,
    table: DeviceTable,
    pod: PodId,
    container: ContainerDemand,
    evidence: EvidenceOf,
) -> Allocation | None:
    ref = ContainerRef(pod, container.name)
    held = {each: ids for each in Resource if (ids := record.holding(ref, each)) is not None}
    wanted = {each for each in Resource if count_of(container.demand, each)}
    if not wanted or set(held) != wanted:
        return None
    cards = {each.card for resource, ids in held.items() for each in table.read(resource, ids)}
    weakest = max((evidence(ref, each) for each in held), key=list(Evidence).index)
    return Allocation(
        table.in_order(cards), container.demand.cores, container.demand.memory, weakest
    )
