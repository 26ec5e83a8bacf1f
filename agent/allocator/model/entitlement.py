"""What one container may use of its cards, by the ledger: what enforcement enforces."""

from dataclasses import dataclass

from agent.allocator.model.allocations import grant_of
from agent.allocator.model.grant import Grant, Share
from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.tickets import DeviceTable
from agent.errors import GrantError
from contract.demand import CORES_PER_CARD, Demand
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What one container may use.

    Attributes:
        ref: which container.
        core_ids: the core places it holds: its tickets; empty where only what they were is
            known: an ordinary init container that an earlier agent served (fact K4).
        cores: these, card by card.
        memory: its memory blocks, card by card; ``None`` is no limit (whole cards).
        core_limit: percent of a card up to which a share may use idle cores beyond its own
            (``vcuda-core-limit``); ``None`` holds it to its own.
        runtime_uid: the UID by which the container runtime knows the pod, where that is told.
    """

    ref: ContainerRef
    core_ids: frozenset[str]
    cores: Grant
    memory: Grant | None
    core_limit: int | None = None
    runtime_uid: str = ""

    @property
    def uid(self) -> str:
        """The UID by which the container runtime knows the pod; empty while nobody knows any."""
        return self.runtime_uid or self.ref.pod.uid


def entitlement(
    ledger: Ledger, table: DeviceTable, ref: ContainerRef, view: PodView | None
) -> Entitlement | None:
    """Read off the ledger what *ref* may use; ``None`` when it holds no cores.

    Args:
        ledger: who holds what.
        table: the node's device IDs.
        ref: which container.
        view: its pod, where the API has shown it.
    """
    held = ledger.holding(ref, Resource.CORE)
    if held is None:
        return None
    try:
        cores = grant_of(ledger, table, ref, Resource.CORE)
        memory = grant_of(ledger, table, ref, Resource.MEMORY)
    except GrantError:  # of a card that this node no longer has
        return None
    if cores is None:
        return None
    limit = view.wishes.core_limit if view is not None else None
    runtime_uid = view.runtime_uid if view is not None else ""
    return Entitlement(ref, held.ids, cores, memory, limit, runtime_uid)


def entitlement_by_annotation(
    table: DeviceTable, ref: ContainerRef, view: PodView
) -> Entitlement | None:
    """Read off a pod's allocation annotation what one of its containers may use.

    For ordinary init containers, which an agent that has just started knows by it alone (K4).

    Args:
        table: the node's device IDs.
        ref: which container.
        view: its pod.
    """
    found = view.annotated.get(ref.container)
    if found is None or any(table.inventory.card(uuid) is None for uuid in found.cards):
        return None
    demand = Demand(found.cores, found.memory_blocks)
    if not found.cards or demand.cards != len(found.cards):
        return None
    cards = table.in_order(found.cards)
    cores = [min(found.cores, CORES_PER_CARD)] * len(cards)
    memory = [
        Share(card, blocks)
        for card, blocks in zip(cards, demand.memory_per_card(), strict=True)
        if blocks
    ]
    return Entitlement(
        ref,
        frozenset(),
        Grant(Resource.CORE, tuple(map(Share, cards, cores))),
        Grant(Resource.MEMORY, tuple(memory)) if memory else None,
        view.wishes.core_limit,
        view.runtime_uid,
    )
