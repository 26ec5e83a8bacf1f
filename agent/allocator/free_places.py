"""What is free of each card: what the kubelet offers, the ledger, and the annotations of pods."""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from agent.allocator.model.allocations import annotated_places, is_disproved
from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.tickets import DeviceTable, card_of, per_card
from contract.demand import ContainerKind
from contract.resource import Resource


def free_places(  # noqa: PLR0913 -- what counts as free, by keyword
    ledger: Ledger,
    table: DeviceTable,
    resource: Resource,
    *,
    hidden: Iterable[PodView] = (),
    reusable_by: PodId | None = None,
    only_listed: bool = False,
) -> dict[str, int]:
    """Count the places of each card that nobody holds.

    A pod that this kubelet knew and lists no more holds nothing, whatever the API shows.

    Args:
        ledger: who holds what.
        table: the node's device IDs.
        resource: which places.
        hidden: pods by whose annotations places may be taken of which the ledger knows nothing.
        reusable_by: count what this pod's ordinary init containers hold as free (fact K7).
        only_listed: count what any pod holds that the kubelet does not list as free.
    """
    pod = reusable_by or PodId("", "", "")
    held = ledger.count(resource)
    free = {
        card: len(places) - held.get(card, 0) for card, places in table.by_card(resource).items()
    }
    for other in ledger.unlisted:
        if other != pod and (only_listed or ledger.no_longer_listed(other)):
            for each in _held_by(other, resource, ledger):
                if card_of(each) in free:
                    free[card_of(each)] += 1
    for each in _held_by(pod, resource, ledger):
        if card_of(each) in free and not ledger.taken(resource, each, but_reusable_by=pod):
            free[card_of(each)] += 1
    for view in hidden:
        if (
            not view.annotated
            or view.terminal
            or view.id == pod
            or ledger.no_longer_listed(view.id)
        ):
            continue
        if is_disproved(ledger, view):
            continue
        for card, count in _beyond_ledger(view, resource, ledger).items():
            if card in free:
                free[card] -= count
    return {card: max(places, 0) for card, places in free.items()}


def _held_by(pod: PodId, resource: Resource, ledger: Ledger) -> set[str]:
    """Return every place of *resource* that any container of *pod* holds."""
    return {
        device_id
        for ref in ledger.pod_refs(pod)
        if (held := ledger.holding(ref, resource)) is not None
        for device_id in held.ids
    }


def left_over(
    pod: PodId, resource: Resource, table: DeviceTable, ledger: Ledger
) -> Mapping[str, int]:
    """Count the places of each card that the pod's ordinary init containers have left over.

    The kubelet makes the next container take them (fact K7), asked for or not.
    """
    left = {
        ticket
        for ref in ledger.pod_refs(pod)
        if (held := ledger.holding(ref, resource)) is not None
        for ticket in table.read(resource, held.ids)
        if not ledger.taken(resource, str(ticket), but_reusable_by=pod)
    }
    return per_card(left)


def _beyond_ledger(view: PodView, resource: Resource, ledger: Ledger) -> Counter[str]:
    """Count the places of each card that a pod must have beyond what the ledger knows.

    The kubelet keeps what ordinary init containers took for the life of the pod and never
    shows it (fact K4), and shows nothing of a pod it has not come to after a restart
    (K11), so an agent that has just started can only know it from the pod's annotation. What
    an ordinary init container took is handed on to the containers after it (K7).
    """
    reusable: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for container in view.demand.containers:
        held = ledger.holding(ContainerRef(view.id, container.name), resource)
        if held is not None:
            count = Counter(map(card_of, held.ids))
        else:
            count = annotated_places(view, container.name, resource)
        handed_on = count & reusable
        taken += count - handed_on
        if container.kind is ContainerKind.INIT:
            reusable += count - handed_on
        else:
            reusable -= handed_on
    return taken - Counter(map(card_of, _held_by(view.id, resource, ledger)))


def offered_by_card(
    resource: Resource, offered: AbstractSet[str], table: DeviceTable, ledger: Ledger
) -> Mapping[str, int]:
    """Count what is offered of each card."""
    held = ledger.held(resource)
    if len(offered) + len(held) == len(table.cards(resource)) and held.isdisjoint(offered):
        # All that nobody holds, as nearly always: thousands need not be counted.
        counts = ledger.count(resource)
        return {
            card: len(places) - counts.get(card, 0)
            for card, places in table.by_card(resource).items()
        }
    known = table.cards(resource)
    return Counter(map(known.__getitem__, offered & known.keys()))


def within_reach(
    pod: PodId, resource: Resource, available: AbstractSet[str], ledger: Ledger
) -> AbstractSet[str]:
    """Return what the kubelet offers, less what a live container holds (fact K15)."""
    taken = {
        each
        for each in ledger.held(resource) & available
        if ledger.taken(resource, each, but_reusable_by=pod)
    }
    return available - taken if taken else available
