"""What the ledger says a container, or a whole pod, has got."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from agent.allocator.model.grant import Grant, translate
from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.tickets import DeviceTable, card_of
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of


def grant_of(
    ledger: Ledger, table: DeviceTable, ref: ContainerRef, resource: Resource
) -> Grant | None:
    """Translate what *ref* holds of *resource*; ``None`` when it holds none.

    Raises:
        GrantError: what it holds makes no sense.
    """
    held = ledger.holding(ref, resource)
    return None if held is None else translate(resource, table.read(resource, held.ids))


def allocations_of(
    ledger: Ledger, table: DeviceTable, view: PodView
) -> dict[str, Allocation] | None:
    """Return what each container of a pod got, once all of them have all they ask for.

    An ordinary init container of which nothing is known does not keep a pod waiting when a
    later container has been served: it was served before this agent started (fact K4).

    Returns:
        Container name -> allocation; ``None`` while something is missing.
    """
    found: dict[str, Allocation] = {}
    annotated = {} if is_disproved(ledger, view) else view.annotated
    for container in view.demand.containers:
        allocation = _allocation(ledger, table, view.id, container)
        if allocation is None:
            allocation = annotated.get(container.name)
        if allocation is not None:
            found[container.name] = allocation
        elif container.kind is not ContainerKind.INIT or not _is_followed(ledger, view, container):
            return None
    return found


def is_disproved(ledger: Ledger, view: PodView) -> bool:
    """Return whether the kubelet's record shows a container on other cards than the annotation.

    Then the annotation is forged, or of an earlier life of the pod, and what it says of ordinary
    init containers, which ``List`` never shows (K4), is not valid either. Unless it
    was a guess by order: that may be wrong for one container alone.
    """
    if any(_is_passed_over(ledger, view, resource) for resource in Resource):
        return True
    return any(
        held.proven
        and annotated.evidence is not Evidence.ORDER
        and set(map(card_of, held.ids)) != set(annotated.cards)
        for container, annotated in view.annotated.items()
        for resource in Resource
        if (held := ledger.holding(ContainerRef(view.id, container), resource)) is not None
    )


def _is_passed_over(ledger: Ledger, view: PodView, resource: Resource) -> bool:
    """Return whether a container has not got what annotated init containers must have left it (K7).

    The kubelet gives it those places before any other.
    """
    if any(each.evidence is Evidence.ORDER for each in view.annotated.values()):
        return False
    left: Counter[str] = Counter()
    for container in view.demand.containers:
        held = ledger.holding(ContainerRef(view.id, container.name), resource)
        if container.kind is ContainerKind.INIT:
            annotated = view.annotated.get(container.name)
            if held is not None or annotated is None:
                return False
            left |= annotated_places(view, container.name, resource)
        elif held is not None and held.proven:
            places = Counter(map(card_of, held.ids))
            handed_on = places & left
            if handed_on.total() < min(places.total(), left.total()):
                return True
            left -= handed_on
        elif count_of(container.demand, resource):
            return False
    return False


def annotated_places(view: PodView, container: str, resource: Resource) -> Counter[str]:
    """Count what an annotation says a container has of each card: of several cards equal parts."""
    annotated = view.annotated.get(container)
    if annotated is None or not annotated.cards:
        return Counter()
    count = annotated.cores if resource is Resource.CORE else annotated.memory_blocks
    return Counter(dict.fromkeys(annotated.cards, -(-count // len(annotated.cards))))


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


def served_inits(ledger: Ledger, table: DeviceTable, view: PodView) -> dict[str, Allocation]:
    """Return what the ordinary init containers of a pod got that have all they ask for."""
    inits = (each for each in view.demand.containers if each.kind is ContainerKind.INIT)
    allocations = ((each.name, _allocation(ledger, table, view.id, each)) for each in inits)
    return {name: allocation for name, allocation in allocations if allocation is not None}


def _is_followed(ledger: Ledger, view: PodView, init: ContainerDemand) -> bool:
    """Return whether a container after *init* holds something."""
    after = view.demand.containers[view.demand.containers.index(init) + 1 :]
    return any(
        ledger.holding(ContainerRef(view.id, each.name), resource)
        for each in after
        for resource in Resource
    )


def _allocation(
    ledger: Ledger, table: DeviceTable, pod: PodId, container: ContainerDemand
) -> Allocation | None:
    ref = ContainerRef(pod, container.name)
    holdings = {
        resource: held
        for resource in Resource
        if (held := ledger.holding(ref, resource)) is not None
    }
    wanted = {each for each in Resource if count_of(container.demand, each)}
    if not wanted or set(holdings) != wanted:
        return None
    cards = {
        ticket.card
        for resource, held in holdings.items()
        for ticket in table.read(resource, held.ids)
    }
    strength = list(Evidence)
    weakest = max((held.evidence for held in holdings.values()), key=strength.index)
    return Allocation(
        table.in_order(cards), container.demand.cores, container.demand.memory, weakest
    )
