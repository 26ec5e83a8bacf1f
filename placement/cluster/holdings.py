"""What a pod holds of its node's cards: by record, by a scheduler's choice, or simulated. Pure."""

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
from placement.held import Taken, add_up
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import Rows


class NodeSnapshot:
    """A node at one moment: what is free, and sums that many decisions need. Never changed.

    Attributes:
        node: the node.
        free: of each card, by its position.
        rows: the same of healthy cards alone.
        totals: cores and memory blocks of healthy cards: all there are, and those taken.
    """

    __slots__ = ("free", "node", "rows", "totals")

    def __init__(self, node: Node, free: Iterable[tuple[int, int]]) -> None:
        self.node = node
        self.free = tuple([Amounts(*row) for row in free])
        if len(self.free) != len(node.cards):
            raise ValueError(f"{len(node.cards)} cards, and what is free of {len(self.free)}")
        healthy, sizes = node.card_set.healthy, node.sizes
        self.rows = [self.free[at] for at in healthy]
        self.totals = [
            (there := sum([sizes[at][slot] for at in healthy]), there - free)
            for slot, free in enumerate(map(sum, zip(NOTHING, *self.rows, strict=True)))
        ]


class Provenance(StrEnum):
    """How it is known that a container holds a card, surest first."""

    RECORDED = "recorded"
    """The agent's record, ``gpu-allocation``."""
    CHOSEN = "chosen"
    """A scheduler's choice, ``predicate-gpu-idx-<i>``; the agent has not confirmed it yet."""
    EXPECTED = "expected"
    """Nobody has said: placed as the agent would place it."""
    UNSEEN = "unseen"
    """The agent counts it as held; the pod that holds it cannot be read with these rights."""


class ContainerCards(NamedTuple):
    """The cards of one container.

    A record may name a card that has gone since, or was swapped. Its container holds nothing of
    any other card, and computes on nothing.

    Attributes:
        positions: on the node, ascending.
        source: how they are known.
        lost: UUIDs of recorded cards that are not there.
    """

    positions: tuple[int, ...]
    source: Provenance
    lost: tuple[str, ...] = ()


_NONE = ContainerCards((), Provenance.EXPECTED)

PodCards: TypeAlias = Mapping[str, ContainerCards]
"""By container name."""


def known_cards(pod: PodInfo, node: Node) -> PodCards | None:
    """Return the cards of each container, by record or choice; ``None`` when one is not known.

    As the agent counts it: an ordinary init container without a record, beside containers that
    have one, holds nothing that anybody knows of.
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
    recorded = pod.annotated.get(container.name)
    if recorded is not None:
        here = sorted(by_uuid[uuid] for uuid in recorded.cards if uuid in by_uuid)
        lost = tuple(uuid for uuid in recorded.cards if uuid not in by_uuid)
        return ContainerCards(tuple(here), Provenance.RECORDED, lost)
    chosen = pod.chosen.get(container.name, ())
    if len(chosen) != container.demand.cards or not all(each in by_index for each in chosen):
        return None
    return ContainerCards(tuple(sorted(by_index[each] for each in chosen)), Provenance.CHOSEN)


@lru_cache(maxsize=4096)
def _positions(node: Node) -> tuple[Mapping[str, int], Mapping[int, int]]:
    """Return the positions of a node's cards, by UUID and by index."""
    return (
        {card.uuid: at for at, card in enumerate(node.cards)},
        {card.index: at for at, card in enumerate(node.cards)},
    )


def parts_of(demand: PodDemand, cards: PodCards) -> dict[tuple[str, int], Amounts]:
    """Return what each container holds of each card that is there, by name and position.

    What init containers have left on a card that is lost is reusable there only (fact K7).
    """
    if len(demand.containers) == 1:  # nearly all, and nobody to hand anything on to
        (only,) = demand.containers
        positions, _, lost = cards.get(only.name, _NONE)
        if len(positions) == only.demand.cards == 1 and not lost:
            cores = min(only.demand.cores, CORES_PER_CARD)
            return {(only.name, positions[0]): Amounts(cores, only.demand.memory)}
    on: dict[str, tuple[int | str, ...]] = {
        name: each.positions + each.lost for name, each in cards.items()
    }
    held = held_on_cards(demand, on)
    return {(name, card): row for (name, card), row in held.items() if isinstance(card, int)}


def taken_on(demand: PodDemand, cards: PodCards) -> Taken:
    """Count what the containers of a pod take of the cards that are there.

    What an ordinary init container took is handed on to the containers after it, before anything
    is taken afresh (fact K7), and is the pod's until it has ended (K4).
    """
    return add_up((at, amounts) for (_, at), amounts in parts_of(demand, cards).items())


def simulate(pod: PodInfo, node: Node, free: Rows, policy: Policy) -> tuple[PodCards, Taken]:
    """Place a pod of which nobody has said where it is, as the agent would.

    One that fits nowhere will be refused by the agent, or the agent knows more: it counts on the
    emptiest cards until one or the other is told.
    """
    containers = pod.demand.containers
    known = {each.name: mine for each in containers if (mine := _known(each, pod, node))}
    # A container with a lost card is placed nowhere else, so it is no part of the plan.
    lost = {name: each for name, each in known.items() if each.lost}
    rest, left = pod, list(free)
    if lost:
        rest = replace(pod, demand=PodDemand(tuple(x for x in containers if x.name not in lost)))
        for at, amounts in taken_on(pod.demand, lost).items():
            left[at] = left[at].minus(amounts)
    fixed = {name: each.positions for name, each in known.items() if name not in lost}
    try:
        plan = plan_pod(rest, node, tuple(left), policy, fixed=fixed)
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
        emptiest = sorted(range(len(left)), key=lambda at: (*(-each for each in left[at]), at))
        for container in containers:
            on = tuple(sorted(emptiest[: max(container.demand.cards, 1)]))
            cards.setdefault(container.name, ContainerCards(on, Provenance.EXPECTED))
    return cards, taken_on(pod.demand, cards)
