"""Device IDs of slots, and whether those of a container may be granted."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.grants import (
    CardGrant,
    Grant,
    check_free,
    check_parts,
    check_request,
    check_together,
    translate,
)
from agent.allocator.slots import DeviceTable, Slot
from agent.errors import GrantError, SettingsError
from contract.demand import Demand
from contract.errors import quote
from contract.inventory import Inventory
from contract.resource import Resource
from tests.agent.builders import BLOCK, CORE, MEMORY, card, device_table, patient


@pytest.mark.parametrize(
    ("device_id", "slot"),
    [
        ("GPU-a::0", Slot("GPU-a", 0)),
        ("GPU-a::123456789", Slot("GPU-a", 123456789)),
        ("a::b::7", Slot("a::b", 7)),
    ],
)
def test_a_device_id_is_read_and_written(device_id: str, slot: Slot) -> None:
    assert Slot.parse(device_id) == slot
    assert str(slot) == device_id


@pytest.mark.parametrize(
    "device_id",
    [
        *("", "GPU-a", "GPU-a:0", "::0", "GPU-a::", "GPU-a::00", "GPU-a::-1", "GPU-a::1.0"),
        *("GPU-a::x", "GPU-a::1\n", "GPU-a::\u0661", "GPU-a::1234567890", "x" * 65),
    ],
)
def test_a_device_id_with_another_form_is_refused(device_id: str) -> None:
    with pytest.raises(GrantError) as caught:
        Slot.parse(device_id)
    assert str(caught.value) == (
        f"device ID {quote(device_id)} is not <card uuid>::<number>: "
        "it does not come from this agent"
    )


@patient
@given(st.text() | st.from_regex(r"\A[a-z:]{0,3}::[0-9]{0,3}\Z"))
def test_only_device_ids_that_can_be_written_are_read(device_id: str) -> None:
    try:
        slot = Slot.parse(device_id)
    except GrantError:
        return
    assert str(slot) == device_id


def test_a_card_has_100_core_slots_and_one_memory_slot_per_block() -> None:
    """Memory that fills no block is not offered."""
    node = DeviceTable(Inventory((card(0, blocks=7), card(1, blocks=2))), 2 * BLOCK)
    assert list(node.slots(MEMORY)) == ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::0"]
    assert list(node.slots(CORE)) == [
        *(f"GPU-0::{number}" for number in range(100)),
        *(f"GPU-1::{number}" for number in range(100)),
    ]
    assert node.slots(CORE)["GPU-1::7"] == Slot("GPU-1", 7)


def test_a_block_larger_than_a_card_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        DeviceTable(Inventory((card(0, blocks=4), card(1, blocks=2))), 3 * BLOCK)
    assert str(caught.value) == (
        "memory-block: Invalid value: 805306368: larger than card GPU-1, which offers "
        "536870912 bytes"
    )


def test_device_ids_are_looked_up_by_card_index_and_slot() -> None:
    node = DeviceTable(Inventory((card(0, uuid="GPU-z"), card(1, uuid="GPU-a"))), BLOCK)
    found = node.read(CORE, ["GPU-a::10", "GPU-a::9", "GPU-z::3"])
    assert found == [Slot("GPU-z", 3), Slot("GPU-a", 9), Slot("GPU-a", 10)]
    assert node.in_order(["GPU-a", "GPU-z", "GPU-a"]) == ("GPU-z", "GPU-a")


@pytest.mark.parametrize(
    ("resource", "device_id", "what"),
    [
        (CORE, "GPU-9::0", "names a card this node does not have"),
        (CORE, "GPU-0::100", "is beyond the 100 cores of its card"),
        (MEMORY, "GPU-0::10", "is beyond the 10 memory blocks of its card"),
    ],
)
def test_a_device_id_that_is_no_slot_of_this_node_is_refused(
    resource: Resource, device_id: str, what: str
) -> None:
    with pytest.raises(GrantError) as caught:
        device_table().read(resource, ["GPU-0::1", device_id])
    assert str(caught.value) == f'device ID "{device_id}" {what}'


# --- what a container is granted ------------------------------------------------------


def _slots(*cards: int) -> list[Slot]:
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
        (CORE, [20, 0, 20, 20]),
        (MEMORY, [3, 2]),
    ],
)
def test_device_ids_are_slots_per_card(resource: Resource, cards: list[int]) -> None:
    grant = translate(resource, _slots(*cards))
    assert grant == _grant(resource, *cards)
    assert grant.cards == tuple(f"GPU-{card}" for card, count in enumerate(cards) if count)
    assert grant.slots == sum(cards)
    assert translate(resource, _slots(*cards)[::-1]).cards == grant.cards[::-1]


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
            *(HALVES, (_grant(CORE, 100),)),
            "a share of 100 cores must be 50 on each of 2 cards, but is not: 100 on GPU-0",
        ),
        (
            *(HALVES, (_grant(MEMORY, 5, 3),)),
            (
                "a share of 8 memory blocks must be 4 on each of 2 cards, but is not: 5 on GPU-0, "
                "3 on GPU-1"
            ),
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
