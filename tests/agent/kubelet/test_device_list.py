"""The one message that lists every slot for the kubelet."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.slots import DeviceTable
from agent.errors import SettingsError
from agent.kubelet.device_list import MOST_BYTES, HealthFeed, check_size, devices, size_of
from common.kubelet_api import deviceplugin_pb2 as api
from contract.inventory import Card, Inventory
from contract.resource import Resource
from tests.agent.builders import MEMORY, patient
from tests.agent.fakes import DEADLINE_S
from tests.examples import share

MIB = 1 << 20
UUID = "GPU-00000000-5eed-4a2d-8c1f-00000000000{}"


def node(cards: int, memory: int, block: int, *, numa: int | None = 0) -> DeviceTable:
    """Cards of *memory* MiB in blocks of *block* MiB."""
    found = (
        Card(UUID.format(index), index, "Test", memory * MIB, numa, minor=index)
        for index in range(cards)
    )
    return DeviceTable(Inventory(tuple(found)), block * MIB)


def sent_bytes(table: DeviceTable, resource: Resource, *, numa: bool) -> int:
    unhealthy = {card.uuid for card in table.inventory.cards}
    return api.ListAndWatchResponse(
        devices=devices(table, resource, unhealthy, numa=numa)
    ).ByteSize()


@settings(patient, max_examples=share(40))
@given(
    st.integers(1, 4),
    st.integers(1, 1100),
    st.sampled_from([None, 0, 1, 300]),
    st.booleans(),
    st.sampled_from(Resource),
)
def test_the_size_is_that_of_the_message(
    cards: int, memory: int, numa_node: int | None, numa: bool, resource: Resource
) -> None:
    table = node(cards, memory, 1, numa=numa_node)
    assert size_of(table, resource, numa=numa) == sent_bytes(table, resource, numa=numa)


@pytest.mark.parametrize("numa", [True, False])
def test_blocks_too_small_for_the_kubelet_are_refused_with_the_smallest_that_works(
    numa: bool,
) -> None:
    memory = 141 * 1024
    with pytest.raises(SettingsError) as caught:
        check_size(node(8, memory, 16), numa=numa)
    text = str(caught.value)
    smallest = int(text.rpartition(": use ")[2].removesuffix("Mi or more"))
    size = size_of(node(8, memory, 16), MEMORY, numa=numa)
    assert text == (
        f"memory-block: Invalid value: 16Mi: 72192 blocks on 8 cards are {size} bytes of devices, "
        "and the kubelet reads at most 4194304 in one message: "
        f"use {smallest}Mi or more"
    )
    check_size(node(8, memory, smallest), numa=numa)
    assert size_of(node(8, memory, smallest), MEMORY, numa=numa) <= MOST_BYTES
    assert size_of(node(8, memory, smallest - 1), MEMORY, numa=numa) > MOST_BYTES


_SMALL = node(1, 1, 1).inventory.cards[0]
_LARGE = node(2, 100_000, 1).inventory.cards[1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            DeviceTable(Inventory((_SMALL, _LARGE)), MIB),
            "no block of this node's cards works$",
        ),
        (node(900, 1024, 256), "^cards: Invalid value: 900 cards: the kubelet reads at most"),
    ],
    ids=["no block helps", "too many cards"],
)
def test_a_node_whose_device_list_is_too_large_for_the_kubelet_is_refused(
    table: DeviceTable, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_size(table, numa=False)


# --- waiting for a change of it ---------------------------------------------------------------


def test_every_waiting_thread_checks_its_condition_after_each_change() -> None:
    unhealthy = {"GPU-0"}
    feed, checks = HealthFeed(lambda: frozenset(unhealthy)), threading.Semaphore(0)
    feed.wait_for(lambda: feed.unhealthy() == {"GPU-0"})  # it has changed before

    def has_changed() -> bool:
        checks.release()
        return len(feed.unhealthy()) > 1

    def wait_for_checks() -> None:
        assert all(checks.acquire(timeout=DEADLINE_S) for _ in range(3))

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(feed.wait_for, has_changed) for _ in range(3)]
        wait_for_checks()
        feed.wake()
        wait_for_checks()
        assert not any(each.done() for each in waiting)
        unhealthy.add("GPU-1")
        feed.wake()
        for each in waiting:
            each.result(DEADLINE_S)
