"""Decide with an exact search over cards whether a pod still fits; it uses the true state."""

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

Amounts = Mapping[str, Mapping[Resource, int]]
"""Card -> number of slots by resource."""


@dataclass(frozen=True, slots=True)
class Task:
    """A container that lacks resources, and has to use *cards* since it holds devices of them."""

    container: Container
    lacking: frozenset[Resource]
    cards: frozenset[str] = frozenset()


def fits(tasks: Sequence[Task], free: Amounts, reusable: Amounts) -> bool:
    """Return whether all containers fit, in the kubelet's order.

    *reusable*: slots of each card that the pod's ordinary init containers left (K7).
    """
    if not tasks:
        return True
    first, *rest = tasks
    demand = first.container.demand
    return any(
        fits(rest, *after)
        for cards in combinations(sorted(free), demand.cards)
        if first.cards <= {*cards}
        for after in _placed(first, cards, demand, free, reusable)
    )


def _placed(
    task: Task, cards: tuple[str, ...], demand: Demand, free: Amounts, reusable: Amounts
) -> Iterator[tuple[Amounts, Amounts]]:
    """Yield the free and the reusable slots after a container is placed on *cards*, if it fits."""
    now_free = {card: dict(slots) for card, slots in free.items()}
    now_reusable = {card: dict(slots) for card, slots in reusable.items()}
    for resource in task.lacking:
        parts = dict(zip(cards, demand.per_card(resource), strict=True))
        requested = sum(parts.values())
        stock = {card: slots.get(resource, 0) for card, slots in reusable.items()}
        if requested >= sum(stock.values()):  # the kubelet gives it all reusable devices
            if any(count > parts.get(card, 0) for card, count in stock.items()):
                return
            taken = stock
        else:  # the kubelet gives it some of them, perhaps those of the right cards
            if any(part > stock.get(card, 0) for card, part in parts.items()):
                return
            taken = parts
        for card, part in parts.items():
            reused = taken.get(card, 0)
            fresh = part - reused
            if fresh > now_free[card][resource]:
                return
            now_free[card][resource] -= fresh
            change = fresh if task.container.hands_on else -reused
            slots = now_reusable.setdefault(card, {})
            slots[resource] = slots.get(resource, 0) + change
    yield now_free, now_reusable


def could_run(world: "World", call: Call, offer: PreferStep) -> bool:
    """Return whether the pod's containers from this call's on fit, by an exact search."""
    pod, kubelet = call.pod, world.kubelet
    if pod.invalid:
        return False
    tasks = []
    for container in pod.containers[pod.containers.index(call.container) :]:
        held = kubelet.of(pod, container.name)
        lacking = frozenset(r for r in Resource if container.count(r) and r not in held)
        cards = frozenset(card_of(device_id) for ids in held.values() for device_id in ids)
        if not all(container.is_divided(*each) for each in held.items()):
            return False  # they were chosen while its request was not known
        if lacking:
            tasks.append(Task(container, lacking, cards))
    free: dict[str, dict[Resource, int]] = {}
    reusable: dict[str, dict[Resource, int]] = {}
    for resource in Resource:
        if resource == offer.resource:
            reusable_ids = frozenset(offer.must_include)
            offered = frozenset(offer.available) - reusable_ids
        else:
            reusable_ids = frozenset(kubelet.state.devices.reusable.get(resource, ()))
            own = kubelet.of(pod, call.container.name).get(resource, frozenset())
            # An init container's own devices are reusable for those after it (K7).
            reusable_ids = reusable_ids | own if call.container.hands_on else reusable_ids - own
            offered = frozenset(kubelet.free(resource))
        counts = Counter(map(card_of, offered - kubelet.held(resource)))
        reusable_counts = Counter(map(card_of, reusable_ids))
        for card in world.cards_here:
            if pod.wished(card) and card not in world.unhealthy:
                free.setdefault(card, {})[resource] = counts[card]
            reusable.setdefault(card, {})[resource] = reusable_counts[card]
    return fits(tasks, free, reusable)
