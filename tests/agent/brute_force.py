"""Decide whether all containers of a pod can be placed: try every card for every container."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource

FreeSlots = Mapping[str, Mapping[Resource, int]]
"""Card -> slots by resource."""


Condition = Callable[[ContainerDemand, tuple[str, ...]], bool]
"""Whether a container may have these cards, whatever is free on them."""


def can_be_placed(
    containers: Sequence[ContainerDemand],
    free: FreeSlots,
    left: FreeSlots,
    *,
    may_have: Condition = lambda *_: True,
    held: Mapping[str, Resource] | None = None,
) -> bool:
    """Return whether there are cards for every container, in the kubelet's order.

    *left* has reusable slots of each card (K7), *held* the resource that a container has already.
    """
    if not containers:
        return True
    first, *rest = containers
    for cards in combinations(sorted(free), first.demand.cards):
        if not may_have(first, cards):
            continue
        after = _placed(first, cards, free, left, (held or {}).get(first.name))
        if after is not None and can_be_placed(rest, *after, may_have=may_have, held=held):
            return True
    return False


def _placed(
    container: ContainerDemand,
    cards: tuple[str, ...],
    free: FreeSlots,
    left: FreeSlots,
    held: Resource | None,
) -> tuple[FreeSlots, FreeSlots] | None:
    demand = container.demand
    now_free = {card: dict(amounts) for card, amounts in free.items()}
    now_left = {card: dict(amounts) for card, amounts in left.items()}
    for resource in Resource:
        requested = resource.count_in(demand)
        if not requested or resource is held:
            continue
        if any(left[card][resource] for card in left if card not in cards):
            return None  # the kubelet may reuse slots of a card that the container is not on
        if resource is Resource.MEMORY or demand.split > 1:
            parts = list(demand.per_card(resource))
        else:
            parts = [min(demand.cores, 100)] * len(cards)
        if demand.split > 1 and any(left[card][resource] > parts[0] for card in cards):
            return None  # the kubelet may reuse more slots of a card than its part
        if any(free[card][resource] + left[card][resource] < max(parts) for card in cards):
            return None
        to_reuse = min(requested, sum(left[card][resource] for card in cards))
        to_take = requested - to_reuse
        in_parts = min(to_reuse, sum(map(min, parts, (left[card][resource] for card in cards))))
        beyond = to_reuse - in_parts
        for card, part in zip(cards, parts, strict=True):
            first = min(part, left[card][resource], in_parts)
            reused = first + min(left[card][resource] - first, beyond)
            fresh = min(max(part - reused, 0), to_take)
            in_parts, beyond = in_parts - first, beyond - (reused - first)
            to_reuse, to_take = to_reuse - reused, to_take - fresh
            if fresh > free[card][resource]:
                return None
            now_free[card][resource] -= fresh
            gain = fresh if container.kind is ContainerKind.INIT else -reused
            now_left[card][resource] += gain
        if to_reuse or to_take:
            return None
    return now_free, now_left
