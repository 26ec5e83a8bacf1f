"""What a pod holds of its node's cards: by record, by a scheduler's choice, or simulated. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import add
from typing import TypeAlias

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
"""Of each card, by its place on the node: what is free of each resource."""

Taken: TypeAlias = tuple[tuple[int, ...], ...]
"""Of each card that is used: its place on the node, then a count for each resource."""


_NOTHING = (0,) * len(RESOURCES)


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
        all_places = map(sum, zip(_NOTHING, *[places for places, _ in healthy], strict=True))
        all_free = map(sum, zip(_NOTHING, *self.rows, strict=True))
        self.totals = [
            (places, places - free) for places, free in zip(all_places, all_free, strict=True)
        ]


def known_cards(pod: PodInfo, node: Node) -> dict[str, tuple[int, ...]] | None:
    """Return the cards of each container, by place; ``None`` when one is not known.

    As the agent counts it: an ordinary init container without a record, beside containers that
    have one, holds nothing that anybody knows of.
    """
    places, by_index = _places(node)
    recorded = {
        name: tuple(sorted(places[uuid] for uuid in each.cards))
        for name, each in pod.annotated.items()
        if all(uuid in places for uuid in each.cards)
    }
    found: dict[str, tuple[int, ...]] = {}
    for container in pod.demand.containers:
        cards = recorded.get(container.name)
        if cards is None:
            if recorded and container.kind is ContainerKind.INIT:
                continue
            cards = _chosen(container, pod.chosen.get(container.name, ()), by_index)
            if cards is None:
                return None
        found[container.name] = cards
    return found


@lru_cache(maxsize=4096)
def _places(node: Node) -> tuple[Mapping[str, int], Mapping[int, int]]:
    """Return the places of a node's cards, by UUID and by index."""
    return (
        {card.uuid: place for place, card in enumerate(node.cards)},
        {card.index: place for place, card in enumerate(node.cards)},
    )


def _chosen(
    container: ContainerDemand, indices: Sequence[int], by_index: Mapping[int, int]
) -> tuple[int, ...] | None:
    if len(indices) != container.demand.cards or not all(each in by_index for each in indices):
        return None
    return tuple(sorted(by_index[each] for each in indices))


def taken_on(demand: PodDemand, cards: Mapping[str, Sequence[int]]) -> Taken:
    """Count what containers take of given cards.

    What an ordinary init container took is handed on to the containers after it, before anything
    is taken afresh (fact K7), and is the pod's until it has ended (K4).
    """
    if len(demand.containers) == 1:  # nobody to hand anything on to
        only = demand.containers[0]
        on = cards.get(only.name, ())
        if len(on) == 1 and only.demand.cards == 1:
            cores, *others = [count_of(only.demand, each) for each in RESOURCES]
            return ((on[0], min(cores, CORES_PER_CARD), *others),)
    taken: dict[int, list[int]] = {}
    for (_, place), counts in held_on_cards(demand, cards).items():
        taken[place] = list(map(add, taken.get(place, _NOTHING), counts))
    return tuple((place, *counts) for place, counts in sorted(taken.items()))


def simulate(pod: PodInfo, node: Node, free: Free, policy: Policy) -> Taken:
    """Place a pod of which nobody has said where it is, as the agent would.

    One that fits nowhere will be refused by the agent, or the agent knows more: it counts on the
    emptiest cards until one or the other is told.
    """
    return simulate_cards(pod, node, free, policy)[1]


def simulate_cards(
    pod: PodInfo, node: Node, free: Free, policy: Policy
) -> tuple[Mapping[str, Sequence[int]], Taken]:
    """Place a pod as :func:`simulate` does; return the cards of each container too, by place."""
    known = _part_known(pod, node)
    try:
        plan = plan_pod(pod, node, free, policy, fixed=known)
    except NoPlacement:
        plan = None
    if plan is not None:
        cards = cards_of(plan, node)
        return cards, taken_on(pod.demand, cards)
    cards = dict(known)
    emptiest = sorted(range(len(free)), key=lambda place: (*(-each for each in free[place]), place))
    for container in pod.demand.containers:
        cards.setdefault(container.name, tuple(sorted(emptiest[: max(container.demand.cards, 1)])))
    return cards, taken_on(pod.demand, cards)


def _part_known(pod: PodInfo, node: Node) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for container in pod.demand.containers:
        mine = {name: each for name, each in pod.annotated.items() if name == container.name}
        alone = replace(pod, demand=PodDemand((container,)), annotated=mine)
        found |= known_cards(alone, node) or {}
    return found


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


def cards_of(plan: Plan, node: Node) -> dict[str, tuple[int, ...]]:
    """Return the cards of each container in a plan, by place."""
    by_name = {str(card.index): place for place, card in enumerate(node.cards)}
    return {
        name: tuple(sorted(by_name[each] for each in assignment.cards))
        for name, assignment in plan.items()
    }
