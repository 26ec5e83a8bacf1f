"""Short ways to write searches for cards, and to read their plans and refusals."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from contract.demand import ContainerDemand, Demand
from contract.inventory import Amounts, Inventory
from placement.capacity import CardSet, need_of
from placement.errors import NoPlacement
from placement.scoring import Policy
from placement.search import ContainerPlan, ContainerStep, make_plan
from placement.topology import Links
from tests.agent.builders import MAIN, card

LINKS = Links(Inventory(tuple(map(card, range(16)))))


class Room(NamedTuple):
    number: int
    free: Amounts
    left: Amounts
    unhealthy: str
    excluded: str


def room(
    index: int,
    cores: int = 100,
    memory: int = 10,
    *,
    left: tuple[int, int] = (0, 0),
    unhealthy: str = "",
    excluded: str = "",
) -> Room:
    return Room(index, Amounts(cores, memory), Amounts(*left), unhealthy, excluded)


def pod(*containers: tuple[Any, ...], **first: Any) -> list[ContainerStep]:
    """Containers ``c0`` ... by cores, memory, kind and number of cards over which they are divided.

    *first* is what is special of the first.
    """
    steps = []
    for index, (cores, memory, *more) in enumerate(containers):
        kind = more[0] if more else MAIN
        demand = ContainerDemand(f"c{index}", kind, index, Demand(cores, memory, *more[1:]))
        steps.append(ContainerStep(demand, need_of(demand.demand)))
    return [replace(steps[0], **first), *steps[1:]]


def plan(
    steps: Sequence[ContainerStep],
    rooms: Sequence[Room],
    *,
    links: Links = LINKS,
    policy: Policy | None = Policy.BINPACK,
    size: int = 10,
    **given: Any,
) -> tuple[ContainerPlan, ...] | None:
    """Plan on cards, which are by index."""
    by_index = sorted(rooms)
    cards = CardSet(
        [f"GPU-{each.number}" for each in by_index],
        [Amounts(100, size)] * len(rooms),
        links,
        [each.unhealthy for each in by_index],
        [each.excluded for each in by_index],
    )
    free, left = [each.free for each in by_index], [each.left for each in by_index]
    return make_plan(steps, cards, free, reusable=left, policy=policy, **given)


def planned(
    steps: Sequence[ContainerStep], rooms: Sequence[Room], **given: Any
) -> dict[str, list[int]]:
    """Plan; gives the cards' indices by container."""
    found = plan(steps, rooms, **given)
    assert found is not None
    indices = sorted(each.number for each in rooms)
    return {
        step.container.name: [indices[at] for at in assignment.cards]
        for step, assignment in zip(steps, found, strict=True)
    }


def refusal(steps: Sequence[ContainerStep], capacities: Sequence[Room], **given: Any) -> str:
    with pytest.raises(NoPlacement) as caught:
        planned(steps, capacities, **given)
    return str(caught.value)
