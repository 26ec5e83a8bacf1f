"""Whether a pod's containers can all be placed: by trying every card for every container."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource

FreeSlots = Mapping[str, Mapping[Resource, int]]
"""Card -> places by resource."""


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
    """Return whether there is a card, or a set of cards, for every container.

    Args:
        containers: in the kubelet's order.
        free: the free slots of each card.
        left: what ordinary init containers of the pod hold and no later one was handed (K7).
        may_have: what else cards must fulfil.
        held: a resource that a container holds already, by its name.
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
        asked = resource.count_in(demand)
        if not asked or resource is held:
            continue
        if any(left[card][resource] for card in left if card not in cards):
            return None  # the kubelet may hand on places of a card that the container is not on
        if resource is Resource.MEMORY or demand.split > 1:
            parts = list(demand.per_card(resource))
        else:
            parts = [min(demand.cores, 100)] * len(cards)
        if demand.split > 1 and any(left[card][resource] > parts[0] for card in cards):
            return None  # the kubelet may hand on more of a card than its part
        if any(free[card][resource] + left[card][resource] < max(parts) for card in cards):
            return None
        to_hand = min(asked, sum(left[card][resource] for card in cards))
        to_take = asked - to_hand
        in_parts = min(to_hand, sum(map(min, parts, (left[card][resource] for card in cards))))
        beyond = to_hand - in_parts
        for card, part in zip(cards, parts, strict=True):
            first = min(part, left[card][resource], in_parts)
            handed = first + min(left[card][resource] - first, beyond)
            fresh = min(max(part - handed, 0), to_take)
            in_parts, beyond = in_parts - first, beyond - (handed - first)
            to_hand, to_take = to_hand - handed, to_take - fresh
            if fresh > free[card][resource]:
                return None
            now_free[card][resource] -= fresh
            gain = fresh if container.kind is ContainerKind.INIT else -handed
            now_left[card][resource] += gain
        if to_hand or to_take:
            return None
    return now_free, now_left
