from functools import partial
from typing import Any

import pytest

from agent.allocator.grants import (
    CardGrant,
    Grant,
    check_free,
    check_parts,
    check_request,
    check_together,
    translate,
)
from agent.allocator.slots import Slot
from agent.errors import GrantError
from contract.demand import Demand
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY


def _slots(*cards: int) -> list[Slot]:
    """Return the first slots of cards: so many of GPU-0, of GPU-1, and so on."""
    return [
        Slot(f"GPU-{card}", number) for card, count in enumerate(cards) for number in range(count)
    ]


def _grant(resource: Resource, *cards: int) -> Grant:
    shares = (CardGrant(f"GPU-{card}", count) for card, count in enumerate(cards) if count)
    return Grant(resource, tuple(shares))


@pytest.mark.parametrize(
    ("resource", "cards"),
    [
        (CORE, [0, 99]),
        (CORE, [100]),
        (CORE, [100, 0, 100]),
        (CORE, [50, 50]),
        (CORE, [20, 0, 20, 20]),
        (MEMORY, [3, 2]),
    ],
)
def test_device_ids_are_slots_per_card(resource: Resource, cards: list[int]) -> None:
    grant = translate(resource, _slots(*cards))
    assert grant == _grant(resource, *cards)
    assert grant.cards == tuple(f"GPU-{card}" for card, count in enumerate(cards) if count)
    assert grant.slots == sum(cards)


def test_the_order_of_the_cards_is_that_of_the_slots() -> None:
    assert translate(MEMORY, _slots(1, 1)[::-1]).cards == ("GPU-1", "GPU-0")


TWO_CARDS = _grant(CORE, 100, 100)
REQUEST = partial(check_request, Demand(50, 4))
SHARE, HALVES, WHOLE = (
    partial(check_parts, each) for each in (Demand(50, 4), Demand(100, 8, 2), Demand(100, 8))
)
UNKNOWN = partial(check_parts, None)
EVEN = "cores must be whole cards or the same part of each, but they are not"


@pytest.mark.parametrize(
    ("check", "given", "message"),
    [
        (translate, (CORE, []), "no cores were named"),
        (translate, (CORE, _slots(1) * 2), "cores are named twice"),
        (UNKNOWN, (_grant(CORE, 30, 20),), f"50 {EVEN}: 30 on GPU-0, 20 on GPU-1"),
        (UNKNOWN, (_grant(CORE, 100, 50),), f"150 {EVEN}: 100 on GPU-0, 50 on GPU-1"),
        (
            *(SHARE, (_grant(CORE, 30, 20),)),
            "a share of 50 cores is split over cards: 30 on GPU-0, 20 on GPU-1",
        ),
        (
            *(WHOLE, (_grant(CORE, 99, 1),)),
            "100 cores must be whole cards, but they are not: 99 on GPU-0, 1 on GPU-1",
        ),
        (
            *(check_together, ([TWO_CARDS, _grant(MEMORY, 0, 1, 1, 1)],)),
            "memory on GPU-2, GPU-3, but the container's cores are on GPU-0, GPU-1",
        ),
        (REQUEST, (_grant(CORE, 40),), "40 cores, but the container requests 50"),
        (REQUEST, (_grant(MEMORY, 5),), "5 memory blocks, but the container requests 4"),
        (
            *(SHARE, (_grant(MEMORY, 3, 1),)),
            "a share of 4 memory blocks is split over cards: 3 on GPU-0, 1 on GPU-1",
        ),
        (
            *(HALVES, (_grant(CORE, 100),)),
            "a share of 100 cores must be 50 on each of 2 cards, but is not: 100 on GPU-0",
        ),
        (
            *(HALVES, (_grant(CORE, 60, 40),)),
            (
                "a share of 100 cores must be 50 on each of 2 cards, but is not: 60 on GPU-0, "
                "40 on GPU-1"
            ),
        ),
        (
            *(HALVES, (_grant(MEMORY, 5, 3),)),
            (
                "a share of 8 memory blocks must be 4 on each of 2 cards, but is not: 5 on GPU-0, "
                "3 on GPU-1"
            ),
        ),
        (
            *(WHOLE, (_grant(CORE, 50, 50),)),
            "100 cores must be whole cards, but they are not: 50 on GPU-0, 50 on GPU-1",
        ),
        (
            *(check_free, (CORE, [*map(str, _slots(5))])),
            "5 cores are held by another container: GPU-0::0, GPU-0::1, GPU-0::2",
        ),
    ],
)
def test_contradictory_slots_are_refused_with_a_reason(
    check: Any, given: Any, message: str
) -> None:
    with pytest.raises(GrantError) as caught:
        check(*given)
    assert str(caught.value) == message


def test_parts_as_requested_pass() -> None:
    for check, grants in (
        (SHARE, [_grant(CORE, 50), _grant(MEMORY, 4)]),
        (HALVES, [_grant(CORE, 50, 0, 50), _grant(MEMORY, 4, 0, 4)]),
        (WHOLE, [_grant(CORE, 0, 100), _grant(MEMORY, 5, 3)]),
        (UNKNOWN, [_grant(CORE, 100), _grant(CORE, 50, 50), _grant(MEMORY, 5, 3)]),
    ):
        for each in grants:
            check(each)
