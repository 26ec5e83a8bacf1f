"""A pod's cards, by its allocation annotation, a scheduler's choice, or a simulation. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, PodDemand
from contract.inventory import NOTHING, Amounts
from contract.reusable import held_on_cards
from placement.cluster.nodes import Node
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.held import HeldByPosition, add_up
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import Rows


class NodeSnapshot:
    """A node at one moment: what is free, and sums that many decisions need. Immutable.

    Attributes:
        node: the node.
        free: free amounts of each card, by its position.
        rows: free amounts of only the cards that new containers may get.
        totals: for cores, then for memory blocks: all of these cards, and those held.
    """

    __slots__ = ("free", "node", "rows", "totals")

    def __init__(self, node: Node, free: Iterable[tuple[int, int]]) -> None:
        self.node = node
        self.free = tuple([Amounts(*row) for row in free])
        if len(self.free) != len(node.cards):
            raise ValueError(f"{len(node.cards)} cards, but free amounts of {len(self.free)}")
        available, sizes = node.card_set.available, node.sizes
        self.rows = [self.free[position] for position in available]
        self.totals = [
            (total := sum([sizes[position][column] for position in available]), total - free)
            for column, free in enumerate(map(sum, zip(NOTHING, *self.rows, strict=True)))
        ]


class Provenance(StrEnum):
    """How it is known that a container holds a card, surest first."""

    RECORDED = "recorded"
    """From the allocation annotation, ``gpu-allocation``."""
    CHOSEN = "chosen"
    """From a scheduler's choice, ``predicate-gpu-idx-<i>``; not confirmed by the agent yet."""
    EXPECTED = "expected"
    """Simulated, as the agent would place it."""
    UNSEEN = "unseen"
    """The agent counts it as held, by a pod that cannot be read with these permissions."""


class ContainerCards(NamedTuple):
    """The cards of one container.

    An allocation may name a card that was removed or exchanged since. Its container then holds
    nothing of any other card.

    Attributes:
        positions: positions of the cards on the node, ascending.
        source: how they are known.
        lost: UUIDs of allocated cards that the node no longer has.
    """

    positions: tuple[int, ...]
    source: Provenance
    lost: tuple[str, ...] = ()


_NONE = ContainerCards((), Provenance.EXPECTED)

PodCards: TypeAlias = Mapping[str, ContainerCards]
"""By container name."""


def known_cards(pod: PodInfo, node: Node) -> PodCards | None:
    """Return the cards of each container, by allocation or choice; ``None`` if one is unknown.

    This follows the agent: if some containers have an allocation, an ordinary init container
    without one holds nothing and is left out.
    """
    found = {}
    for container in pod.demand.containers:
        is_init, name = container.kind is ContainerKind.INIT, container.name
        if is_init and pod.annotated and name not in pod.annotated:
            continue
        cards = _known(container, pod, node)
        if cards is None:
            return None
        found[name] = cards
    return found


def _known(container: ContainerDemand, pod: PodInfo, node: Node) -> ContainerCards | None:
    by_uuid, by_index = _positions(node)
    allocation = pod.annotated.get(container.name)
    if allocation is not None:
        present = sorted(by_uuid[uuid] for uuid in allocation.cards if uuid in by_uuid)
        lost = tuple(uuid for uuid in allocation.cards if uuid not in by_uuid)
        return ContainerCards(tuple(present), Provenance.RECORDED, lost)
    chosen = pod.chosen.get(container.name, ())
    if len(chosen) != container.demand.cards or not all(each in by_index for each in chosen):
        return None
    return ContainerCards(tuple(sorted(by_index[each] for each in chosen)), Provenance.CHOSEN)


@lru_cache(maxsize=4096)
def _positions(node: Node) -> tuple[Mapping[str, int], Mapping[int, int]]:
    """Return the positions of a node's cards, by UUID and by index."""
    return (
        {card.uuid: position for position, card in enumerate(node.cards)},
        {card.index: position for position, card in enumerate(node.cards)},
    )


def held_by_container(demand: PodDemand, cards: PodCards) -> dict[tuple[str, int], Amounts]:
    """Return what each container holds of each present card, by container name and position.

    Devices of init containers on a lost card are reusable only on that card (fact K7).
    """
    if len(demand.containers) == 1:  # the usual case, in which nothing is reusable
        (only,) = demand.containers
        positions, _, lost = cards.get(only.name, _NONE)
        if len(positions) == only.demand.cards == 1 and not lost:
            cores = min(only.demand.cores, CORES_PER_CARD)
            return {(only.name, positions[0]): Amounts(cores, only.demand.memory)}
    all_cards: dict[str, tuple[int | str, ...]] = {
        name: each.positions + each.lost for name, each in cards.items()
    }
    held = held_on_cards(demand, all_cards)
    return {(name, card): row for (name, card), row in held.items() if isinstance(card, int)}


def held_by_pod(demand: PodDemand, cards: PodCards) -> HeldByPosition:
    """Return what a pod holds of each present card.

    Containers reuse the devices of ordinary init containers before them, and get fresh ones only
    for the rest (fact K7). The pod holds all of these until it has ended (K4).
    """
    return add_up(
        (position, amounts) for (_, position), amounts in held_by_container(demand, cards).items()
    )


def simulate(
    pod: PodInfo, node: Node, free: Rows, policy: Policy
) -> tuple[PodCards, HeldByPosition]:
    """Estimate the cards of a bound pod without known cards, as the agent would choose them.

    If it fits nowhere, it counts on the emptiest cards until the agent reports its allocation or
    refuses it.
    """
    containers = pod.demand.containers
    known = {each.name: own for each in containers if (own := _known(each, pod, node))}
    # A container with a lost card gets no other card, so it is not part of the plan.
    lost = {name: each for name, each in known.items() if each.lost}
    rest, free_for_rest = pod, list(free)
    if lost:
        rest = replace(pod, demand=PodDemand(tuple(x for x in containers if x.name not in lost)))
        for position, amounts in held_by_pod(pod.demand, lost).items():
            free_for_rest[position] = free_for_rest[position].minus(amounts)
    fixed = {name: each.positions for name, each in known.items() if name not in lost}
    try:
        plan = plan_pod(rest, node, tuple(free_for_rest), policy, fixed=fixed)
    except NoPlacement:
        plan = None
    if plan is not None:
        expected = {
            name: ContainerCards(tuple(sorted(each.cards)), Provenance.EXPECTED)
            for name, each in plan.items()
        }
        cards = {**expected, **known}
    else:
        cards = {**known}
        emptiest = sorted(
            range(len(free_for_rest)),
            key=lambda position: (*(-each for each in free_for_rest[position]), position),
        )
        for container in containers:
            on = tuple(sorted(emptiest[: max(container.demand.cards, 1)]))
            cards.setdefault(container.name, ContainerCards(on, Provenance.EXPECTED))
    return cards, held_by_pod(pod.demand, cards)
