"""What a pod holds of its node's cards: by record, by a scheduler's choice, or simulated. Pure."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, PodDemand
from contract.resource import RESOURCES, Counts, count_of
from contract.reusable import held_on_cards
from placement.capacity import CardState, need_of
from placement.cluster.nodes import Node
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import Capacity, Plan, Step, make_plan

Free: TypeAlias = Sequence[Counts]
"""Of each card, by its place on the node: what is free of it."""

Taken: TypeAlias = tuple[tuple[int, int, int], ...]
"""Of each card that is used: its place on the node, cores and memory blocks."""


class View:
    """A node at one moment: what is free, and sums that many decisions need. Never changed.

    Attributes:
        node: the node.
        free: of each card, by its place.
        rows: the same of healthy cards alone.
        totals: of each resource the places of healthy cards, all there are and those taken.
    """

    __slots__ = ("free", "node", "rows", "totals")

    def __init__(self, node: Node, free: Free) -> None:
        self.node = node
        self.free = free
        pairs = zip(node.cards, free, strict=True)
        healthy = [(card.places, row) for card, row in pairs if card.healthy]
        self.rows = [row for _, row in healthy]
        all_places = [sum(places[at] for places, _ in healthy) for at in (0, 1)]
        all_free = [sum(row[at] for row in self.rows) for at in (0, 1)]
        self.totals = [
            (places, places - free) for places, free in zip(all_places, all_free, strict=True)
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
        places: on the node, ascending.
        source: how they are known.
        lost: UUIDs of recorded cards that are not there.
    """

    places: tuple[int, ...]
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
        if not _is_forgotten(container, pod):
            cards = _known(container, pod, node)
            if cards is None:
                return None
            found[container.name] = cards
    return found


def _is_forgotten(container: ContainerDemand, pod: PodInfo) -> bool:
    is_init = container.kind is ContainerKind.INIT
    return is_init and bool(pod.annotated) and container.name not in pod.annotated


def _known(container: ContainerDemand, pod: PodInfo, node: Node) -> ContainerCards | None:
    by_uuid, by_index = _places(node)
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
def _places(node: Node) -> tuple[Mapping[str, int], Mapping[int, int]]:
    """Return the places of a node's cards, by UUID and by index."""
    return (
        {card.uuid: place for place, card in enumerate(node.cards)},
        {card.index: place for place, card in enumerate(node.cards)},
    )


def parts_of(demand: PodDemand, cards: PodCards) -> dict[tuple[str, int], list[int]]:
    """Return what each container holds of each card that is there, by name and place.

    What init containers have left on a card that is lost is reusable there only (fact K7).
    """
    if len(demand.containers) == 1:  # nearly all, and nobody to hand anything on to
        (only,) = demand.containers
        places, _, lost = cards.get(only.name, _NONE)
        if len(places) == only.demand.cards == 1 and not lost:
            cores = min(only.demand.cores, CORES_PER_CARD)
            return {(only.name, places[0]): [cores, only.demand.memory]}
    on: dict[str, tuple[int | str, ...]] = {
        name: each.places + each.lost for name, each in cards.items()
    }
    held = held_on_cards(demand, on)
    return {(name, card): row for (name, card), row in held.items() if isinstance(card, int)}


def taken_on(demand: PodDemand, cards: PodCards) -> Taken:
    """Count what the containers of a pod take of the cards that are there.

    What an ordinary init container took is handed on to the containers after it, before anything
    is taken afresh (fact K7), and is the pod's until it has ended (K4).
    """
    return add_up(parts_of(demand, cards))


def add_up(parts: Mapping[tuple[str, int], Sequence[int]]) -> Taken:
    """Return the sums by card of what :func:`parts_of` returns."""
    taken: dict[int, Counts] = {}
    for (_, place), (more_cores, more_blocks) in parts.items():
        cores, blocks = taken.get(place, (0, 0))
        taken[place] = cores + more_cores, blocks + more_blocks
    return tuple((place, cores, blocks) for place, (cores, blocks) in sorted(taken.items()))


def less(free: Counts, counts: Sequence[int]) -> Counts:
    """Return what is left of *free*, nothing where more is taken than there was."""
    return max(free[0] - counts[0], 0), max(free[1] - counts[1], 0)


def simulate(pod: PodInfo, node: Node, free: Free, policy: Policy) -> Taken:
    """Place a pod of which nobody has said where it is, as the agent would.

    One that fits nowhere will be refused by the agent, or the agent knows more: it counts on the
    emptiest cards until one or the other is told.
    """
    return simulate_cards(pod, node, free, policy)[1]


def simulate_cards(pod: PodInfo, node: Node, free: Free, policy: Policy) -> tuple[PodCards, Taken]:
    """Place a pod as :func:`simulate` does; return the cards of each container too."""
    containers = pod.demand.containers
    known = {each.name: mine for each in containers if (mine := _known(each, pod, node))}
    # A container with a lost card is placed nowhere else, so it is no part of the plan.
    lost = {name: each for name, each in known.items() if each.lost}
    rest = replace(pod, demand=_without(pod.demand, lost)) if lost else pod
    left = list(free)
    for place, *counts in taken_on(pod.demand, lost) if lost else ():
        left[place] = less(left[place], counts)
    fixed = {name: each.places for name, each in known.items() if name not in lost}
    try:
        plan = plan_pod(rest, node, left, policy, fixed=fixed)
    except NoPlacement:
        plan = None
    if plan is not None:
        cards = {**cards_of(plan, node), **known}
    else:
        cards = {**known}
        emptiest = sorted(range(len(left)), key=lambda at: (*(-each for each in left[at]), at))
        for container in containers:
            on = tuple(sorted(emptiest[: max(container.demand.cards, 1)]))
            cards.setdefault(container.name, ContainerCards(on, Provenance.EXPECTED))
    return cards, taken_on(pod.demand, cards)


def _without(demand: PodDemand, names: Container[str]) -> PodDemand:
    return PodDemand(tuple(each for each in demand.containers if each.name not in names))


def plan_pod(  # noqa: PLR0913 -- what a plan depends on, by keyword
    pod: PodInfo,
    node: Node,
    free: Free,
    policy: Policy,
    *,
    fixed: Mapping[str, Sequence[int]] | None = None,
    most_tries: int = 500,
) -> Plan | None:
    """Place all containers of a pod with the agent's own code.

    As the agent does, the plan holds whichever places the kubelet hands on; where there is no such
    plan, one that may hold will do.

    Args:
        pod: the pod.
        node: where.
        free: what is free there.
        policy: which card a share prefers, where the pod's author has no wish.
        fixed: the cards of containers that have theirs, by name and place.
        most_tries: how many placings are tried.

    Returns:
        The plan, by container name; cards are named by their index as text. ``None`` when the
        search was given up.

    Raises:
        NoPlacement: there is none.
    """
    if node.links is None:
        raise NoPlacement("no cards")
    wishes = pod.wishes
    picky = wishes.rules_out_cards
    capacities = [
        _capacity(
            card.index,
            card.places,
            free_here,
            "" if card.healthy else "unhealthy",
            wishes.excludes(model=card.model, uuid=card.uuid) if picky else "",
        )
        for card, free_here in zip(node.cards, free, strict=True)
    ]
    names = {
        name: tuple(str(node.cards[each].index) for each in on)
        for name, on in (fixed or {}).items()
    }
    steps = [
        Step(
            container,
            need_of(container.demand),
            frozenset(each for each in RESOURCES if count_of(container.demand, each)),
            fixed=names.get(container.name, ()),
            link=wishes.link,
        )
        for container in pod.demand.containers
    ]
    chosen = Policy(wishes.policy) if wishes.policy else policy
    refusal: NoPlacement | None = None
    inits = any(each.kind is ContainerKind.INIT for each in pod.demand.containers)
    for guaranteed in (True, False) if inits else (True,):
        try:
            plan = make_plan(
                steps,
                capacities,
                links=node.links,
                policy=chosen,
                guaranteed=guaranteed,
                most_tries=most_tries,
            )
        except NoPlacement as error:
            refusal = refusal or error
        else:
            if plan is not None:
                return plan
            refusal = None
    if refusal is not None:
        raise refusal
    return None


@lru_cache(maxsize=4096)
def _capacity(index: int, places: Counts, free: Counts, unhealthy: str, excluded: str) -> Capacity:
    """Return a card that nobody has named yet; most cards are as they were a pod ago."""
    return Capacity(
        CardState(
            str(index),
            index,
            dict(zip(RESOURCES, free, strict=True)),
            dict(zip(RESOURCES, places, strict=True)),
            unhealthy,
            excluded,
        )
    )


def cards_of(plan: Plan, node: Node) -> PodCards:
    """Return the cards of each container in a plan."""
    by_name = {str(card.index): place for place, card in enumerate(node.cards)}
    return {
        name: ContainerCards(
            tuple(sorted(by_name[each] for each in assignment.cards)), Provenance.EXPECTED
        )
        for name, assignment in plan.items()
    }
