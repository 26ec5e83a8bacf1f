"""Whether a pod can still be placed: an exact search over cards. Knows all, guesses nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from contract.demand import Demand
from contract.resource import Resource
from simulator.kubelet.devices import PreferStep
from tests.adversary.judge import Call
from tests.in_memory.pods import Container, card_of

if TYPE_CHECKING:
    from tests.adversary.world import World

Places = Mapping[str, Mapping[Resource, int]]
"""Card -> places by resource."""


@dataclass(frozen=True, slots=True)
class Task:
    """A container that lacks something.

    Attributes:
        lacking: what it is still to get.
        cards: the cards that it is bound to by what it holds.
    """

    container: Container
    lacking: frozenset[Resource]
    cards: frozenset[str] = frozenset()


def fits(tasks: Sequence[Task], free: Places, left: Places) -> bool:
    """Return whether there are cards for all containers, one after the other.

    Args:
        tasks: in the kubelet's order.
        free: by card that may be used, what nobody holds.
        left: by card, what ordinary init containers of the pod have left over (K7).
    """
    if not tasks:
        return True
    first, *rest = tasks
    demand = first.container.demand
    return any(
        fits(rest, *after)
        for cards in combinations(sorted(free), demand.cards)
        if first.cards <= {*cards}
        for after in _placed(first, cards, demand, free, left)
    )


def _placed(
    task: Task, cards: tuple[str, ...], demand: Demand, free: Places, left: Places
) -> Iterator[tuple[Places, Places]]:
    """Yield what is free and left over once a container is on *cards*, if it can be."""
    now_free = {card: dict(places) for card, places in free.items()}
    now_left = {card: dict(places) for card, places in left.items()}
    for resource in task.lacking:
        parts = dict(zip(cards, demand.per_card(resource), strict=True))
        asked = sum(parts.values())
        stock = {card: places.get(resource, 0) for card, places in left.items()}
        if asked >= sum(stock.values()):  # all that is left over is handed on
            if any(count > parts.get(card, 0) for card, count in stock.items()):
                return
            handed = stock
        else:  # some of it, which may be the right places
            if any(part > stock.get(card, 0) for card, part in parts.items()):
                return
            handed = parts
        for card, part in parts.items():
            reused = handed.get(card, 0)
            fresh = part - reused
            if fresh > now_free[card][resource]:
                return
            now_free[card][resource] -= fresh
            kept = fresh if task.container.hands_on else -reused
            places = now_left.setdefault(card, {})
            places[resource] = places.get(resource, 0) + kept
    yield now_free, now_left


def could_run(world: "World", call: Call, offer: PreferStep) -> bool:
    """Return whether a pod's containers from here on have places, by an exact search."""
    pod, kubelet = call.pod, world.kubelet
    if pod.invalid:
        return False
    tasks = []
    for container in pod.containers[pod.containers.index(call.container) :]:
        held = kubelet.of(pod, container.name)
        lacking = frozenset(r for r in Resource if container.count(r) and r not in held)
        cards = frozenset(card_of(device_id) for ids in held.values() for device_id in ids)
        if lacking:
            tasks.append(Task(container, lacking, cards))
    free: dict[str, dict[Resource, int]] = {}
    left: dict[str, dict[Resource, int]] = {}
    for resource in Resource:
        if resource == offer.resource:
            reusable = frozenset(offer.must_include)
            offered = frozenset(offer.available) - reusable
        else:
            reusable = frozenset(kubelet.state.devices.reusable.get(resource, ()))
            if not call.container.hands_on:  # what it keeps is left to nobody
                reusable -= kubelet.of(pod, call.container.name).get(resource, frozenset())
            offered = frozenset(kubelet.free(resource))
        counts = Counter(map(card_of, offered - kubelet.held(resource)))
        handed_on = Counter(map(card_of, reusable))
        for card in world.cards_here:
            if pod.wished(card) and card not in world.ill:
                free.setdefault(card, {})[resource] = counts[card]
            left.setdefault(card, {})[resource] = handed_on[card]
    return fits(tasks, free, left)
