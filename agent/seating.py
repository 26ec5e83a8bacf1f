"""Placing on the ledger: from what the kubelet offers and what is held, to device IDs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from agent.errors import PlacementError
from agent.ledger import Claim, Ledger
from agent.place import CardState, Need, Policy, need_of, pick, place
from agent.podview import PodId, PodView
from agent.tickets import Resource, Ticket, TicketBook, card_of, count_of
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand


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
    available: AbstractSet[str],
    must: Sequence[Ticket] = (),
    plan: tuple[str, ...] = (),
    hidden: Iterable[PodView] = (),
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
        hidden: pods that the kubelet may book more for than its record shows.

    Returns:
        The container's cards by index, and the tickets of *resource*.

    Raises:
        PlacementError: nothing fits.
    """
    offered = _within_reach(claim.pod, resource, available, ledger)
    free = _count_by_card(resource, offered, book, ledger)

    def states(hidden: Iterable[PodView]) -> list[CardState]:
        other = free_places(ledger, book, resource.other, hidden=hidden, reusable_by=claim.pod)
        return [
            CardState(
                card.uuid,
                card.index,
                {resource: free[card.uuid], resource.other: other[card.uuid]},
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
    if held is None and count_of(container.demand, resource.other):
        bound = book.in_order([*bound, *_handed_on(claim.pod, resource.other, book, ledger)])
    if len(fixed) < container.demand.cards:
        fixed, bound = (), book.in_order([*fixed, *bound])
    try:
        cards = place(need, states(hidden), policy=policy, fixed=fixed, must=bound)
    except PlacementError:
        # A record may be stale: nobody is refused for one.
        cards = place(need, states(()), policy=policy, fixed=fixed, must=bound)
    within = {card: book.among(resource, card, offered) for card in cards}
    return cards, pick(container.demand, resource, cards, free=within, must=must)


def at_least(container: ContainerDemand, book: TicketBook) -> ContainerDemand:
    """Work out what a container must ask for of which only the memory is known.

    More memory than any card has is asked for with whole cards.
    """
    largest = max((book.places(Resource.MEMORY, card) for card in book.inventory.cards), default=0)
    memory = container.demand.memory
    if memory <= largest or not container.demand.is_share or not largest:
        return container
    cores = CORES_PER_CARD * -(-memory // largest)
    return replace(container, demand=Demand(cores, memory))


def free_places(
    ledger: Ledger,
    book: TicketBook,
    resource: Resource,
    *,
    hidden: Iterable[PodView] = (),
    reusable_by: PodId | None = None,
) -> dict[str, int]:
    """Count the places of each card that nobody holds.

    Args:
        ledger: who holds what.
        book: the node's tickets.
        resource: which places.
        hidden: pods by whose records places may be taken of which the ledger knows nothing.
        reusable_by: count what this pod's ordinary init containers hold as free (fact K7).
    """
    pod = reusable_by or PodId("", "", "")
    held = ledger.count(resource)
    free = {
        card: len(places) - held.get(card, 0) for card, places in book.by_card(resource).items()
    }
    for each in _held_by(pod, resource, ledger):
        if card_of(each) in free and not ledger.taken(resource, each, but_reusable_by=pod):
            free[card_of(each)] += 1
    for view in hidden:
        if not view.recorded or view.terminal or view.id == pod:
            continue
        for card, count in _beyond_book(view, resource, ledger).items():
            if card in free:
                free[card] -= count
    return {card: max(places, 0) for card, places in free.items()}


def _held_by(pod: PodId, resource: Resource, ledger: Ledger) -> set[str]:
    """Give every place of *resource* that any container of *pod* holds."""
    return {
        device_id
        for claim in ledger.pod_claims(pod)
        if (held := ledger.holding(claim, resource)) is not None
        for device_id in held.ids
    }


def _handed_on(pod: PodId, resource: Resource, book: TicketBook, ledger: Ledger) -> tuple[str, ...]:
    """Give the cards of places that the pod's ordinary init containers have left over.

    The kubelet makes the next container take them (fact K7), asked for or not.
    """
    return book.in_order(
        ticket.card
        for claim in ledger.pod_claims(pod)
        if (held := ledger.holding(claim, resource)) is not None
        for ticket in book.read(resource, held.ids)
        if not ledger.taken(resource, str(ticket), but_reusable_by=pod)
    )


def _beyond_book(view: PodView, resource: Resource, ledger: Ledger) -> Counter[str]:
    """Count the places of each card that a pod must have beyond what the ledger knows.

    The kubelet keeps what ordinary init containers took booked for the life of the pod and
    never shows it (fact K4), and shows nothing of a pod it has not come to after a restart
    (K11), so an agent that has just started can only know it from the pod's own record. What
    an ordinary init container took is handed on to the containers after it (K7).
    """
    reusable: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for container in view.demand.containers:
        held = ledger.holding(Claim(view.id, container.name), resource)
        if held is not None:
            count = Counter(map(card_of, held.ids))
        else:
            count = _recorded(view, container.name, resource)
        handed_on = count & reusable
        taken += count - handed_on
        if container.kind is ContainerKind.INIT:
            reusable += count - handed_on
        else:
            reusable -= handed_on
    return taken - Counter(map(card_of, _held_by(view.id, resource, ledger)))


def _recorded(view: PodView, container: str, resource: Resource) -> Counter[str]:
    """Count what a record says a container has of each card: of several cards equal parts."""
    recorded = view.recorded.get(container)
    if recorded is None or not recorded.cards:
        return Counter()
    count = recorded.cores if resource is Resource.CORE else recorded.memory_blocks
    return Counter(dict.fromkeys(recorded.cards, -(-count // len(recorded.cards))))


def _count_by_card(
    resource: Resource, offered: AbstractSet[str], book: TicketBook, ledger: Ledger
) -> Mapping[str, int]:
    """Count what is offered of each card."""
    held = ledger.held(resource)
    if len(offered) + len(held) == len(book.cards(resource)) and held.isdisjoint(offered):
        # All that nobody holds, as nearly always: thousands need not be counted.
        counts = ledger.count(resource)
        return {
            card: len(places) - counts.get(card, 0)
            for card, places in book.by_card(resource).items()
        }
    known = book.cards(resource)
    return Counter(map(known.__getitem__, offered & known.keys()))


def _within_reach(
    pod: PodId, resource: Resource, available: AbstractSet[str], ledger: Ledger
) -> AbstractSet[str]:
    """Give what the kubelet offers, less what a live container holds (fact K15)."""
    taken = {
        each
        for each in ledger.held(resource) & available
        if ledger.taken(resource, each, but_reusable_by=pod)
    }
    return available - taken if taken else available
