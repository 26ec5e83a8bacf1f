"""What one container may use of its cards, by the ledger: what enforcement enforces."""

from dataclasses import dataclass

from agent.allocations import grant_of
from agent.errors import GrantError
from agent.grant import Grant
from agent.ledger import Claim, Ledger
from agent.podview import PodView
from agent.tickets import Resource, TicketBook


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What one container may use.

    Attributes:
        claim: which container.
        core_ids: the core places it holds: its tickets.
        cores: these, card by card.
        memory: its memory blocks, card by card; ``None`` is no limit (whole cards).
        core_limit: percent of a card up to which a share may use idle cores beyond its own
            (``vcuda-core-limit``); ``None`` holds it to its own.
    """

    claim: Claim
    core_ids: frozenset[str]
    cores: Grant
    memory: Grant | None
    core_limit: int | None = None


def entitlement(
    ledger: Ledger, book: TicketBook, claim: Claim, view: PodView | None
) -> Entitlement | None:
    """Read off the ledger what *claim* may use; ``None`` when it holds no cores.

    Args:
        ledger: who holds what.
        book: the node's tickets.
        claim: which container.
        view: its pod, where the API has shown it.
    """
    held = ledger.holding(claim, Resource.CORE)
    if held is None:
        return None
    try:
        cores = grant_of(ledger, book, claim, Resource.CORE)
        memory = grant_of(ledger, book, claim, Resource.MEMORY)
    except GrantError:  # of a card that this node no longer has
        return None
    if cores is None:
        return None
    limit = view.wishes.core_limit if view is not None else None
    return Entitlement(claim, held.ids, cores, memory, limit)
