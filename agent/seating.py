"""Placing on the ledger: from what the kubelet offers and what is held, to device IDs."""

from collections import Counter
from collections.abc import Callable, Sequence

from agent.ledger import Claim, Ledger
from agent.place import CardState, Need, Policy, need_of, pick, place
from agent.podview import PodId, PodView
from agent.tickets import Resource, Ticket, TicketBook
from contract.demand import ContainerDemand, ContainerKind, PodDemand


def seat(  # noqa: PLR0913 -- one call of the kubelet, spelled out
    claim: Claim,
    container: ContainerDemand,
    pod: PodDemand,
    resource: Resource,
    *,
    book: TicketBook,
    ledger: Ledger,
    healthy: Callable[[str], bool],
    policy: Policy,
    available: Sequence[str],
    must: Sequence[Ticket] = (),
    plan: tuple[str, ...] = (),
    views: Sequence[PodView] = (),
) -> tuple[tuple[str, ...], list[Ticket]]:
    """Choose cards and places for one container.

    Args:
        claim: whose places these will be.
        container: what it asks for.
        pod: its whole pod, to look ahead.
        resource: which resource is asked for.
        book: the node's tickets.
        ledger: who holds what.
        healthy: whether a card, by UUID, may be given out.
        policy: which card a share prefers.
        available: the IDs the kubelet offers; a place outside them is never chosen.
        must: places the kubelet hands on (``must_include``).
        plan: the cards chosen when the container's other resource was placed.
        views: the node's pods, for what the kubelet books and its record does not show.

    Returns:
        The container's cards by index, and the tickets of *resource*.

    Raises:
        PlacementError: nothing fits.
    """
    free = _offered(claim.pod, resource, available, book=book, ledger=ledger)
    other = free_places(ledger, book, resource.other, views=views, reusable_by=claim.pod)
    states = [
        CardState(
            card.uuid,
            card.index,
            {resource: len(free[card.uuid]), resource.other: other[card.uuid]},
            healthy(card.uuid),
        )
        for card in book.inventory.cards
    ]
    need = need_of(pod, container)
    fixed: tuple[str, ...] = ()
    held = ledger.holding(claim, resource.other)
    if held is not None:  # given out already: it need not fit again, and this must follow it
        need = Need(need.demand, {**need.per_card, resource.other: 0})
        fixed = book.in_order(ticket.card for ticket in book.read(resource.other, held.ids))
        fixed = plan if set(fixed) <= set(plan) else fixed
    bound = book.in_order(ticket.card for ticket in must)
    if len(fixed) < container.demand.cards:
        fixed, bound = (), book.in_order([*fixed, *bound])
    cards = place(need, states, policy=policy, fixed=fixed, must=bound)
    return cards, pick(container.demand, resource, cards, free=free, must=must)


def free_places(
    ledger: Ledger,
    book: TicketBook,
    resource: Resource,
    *,
    views: Sequence[PodView] = (),
    reusable_by: PodId | None = None,
) -> dict[str, int]:
    """Count the places of each card that nobody holds.

    Args:
        ledger: who holds what.
        book: the node's tickets.
        resource: which places.
        views: the node's pods.
        reusable_by: count what this pod's ordinary init containers hold as free (fact K7).
    """
    pod = reusable_by or PodId("", "", "")
    free = {card.uuid: book.places(resource, card) for card in book.inventory.cards}
    known = book.tickets(resource)
    held: Counter[tuple[PodId, str]] = Counter()
    for (kind, device_id), owner in ledger.owners.items():
        if kind is not resource or device_id not in known:
            continue
        held[owner, known[device_id].card] += 1
        if ledger.taken(resource, device_id, but_reusable_by=pod):
            free[known[device_id].card] -= 1
    for view in views:
        if not view.terminal and view.id != pod:
            for card, places in _recorded_by_init(view, resource).items():
                if card in free:
                    free[card] -= max(places - held[view.id, card], 0)
    return {card: max(places, 0) for card, places in free.items()}


def _recorded_by_init(view: PodView, resource: Resource) -> dict[str, int]:
    """Count what a pod's ordinary init containers took of each card, by its own record.

    The kubelet keeps these places booked for the life of the pod and never shows them
    (fact K4), so an agent that has just started can only know them from here. Ordinary init
    containers hand places on to each other: the largest one counts.
    """
    largest: dict[str, int] = {}
    for container in view.demand.containers:
        recorded = view.recorded.get(container.name)
        if container.kind is not ContainerKind.INIT or recorded is None:
            continue
        count = recorded.cores if resource is Resource.CORE else recorded.memory_blocks
        for card in recorded.cards:
            places = -(-count // len(recorded.cards))
            largest[card] = max(largest.get(card, 0), places)
    return largest


def _offered(
    pod: PodId,
    resource: Resource,
    available: Sequence[str],
    *,
    book: TicketBook,
    ledger: Ledger,
) -> dict[str, list[Ticket]]:
    """Sort what the kubelet offers by card, less what a live container holds (fact K15)."""
    known = book.tickets(resource)
    free: dict[str, list[Ticket]] = {card.uuid: [] for card in book.inventory.cards}
    for device_id in available:
        ticket = known.get(device_id)
        if ticket is None or ledger.taken(resource, device_id, but_reusable_by=pod):
            continue
        free[ticket.card].append(ticket)
    for tickets in free.values():
        tickets.sort()
    return free
