"""The device plugin's gRPC server over real unix sockets, and its list of devices."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.slots import DeviceTable
from agent.errors import KubeletReplaced, PlacementError, SettingsError
from agent.holdings.edits import ContainerEdits, Mount
from agent.kubelet.device_list import MOST_BYTES, HealthFeed, check_size, devices, size_of
from agent.kubelet.server import (
    BURST,
    LONGEST_SECONDS,
    PER_SECOND,
    DevicePluginService,
    PluginServer,
    RefusalPace,
)
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import deviceplugin_pb2 as pb
from contract.inventory import Card, Inventory
from contract.resource import Resource
from simulator.kubelet.errors import PluginCallFailed
from simulator.kubelet.plugins import PluginClient
from tests.agent.builders import CORE, MEMORY, patient
from tests.agent.fakes import DEADLINE_S, FakeCalls, FakeClock, make_table
from tests.examples import share


@pytest.fixture
def calls() -> FakeCalls:
    return FakeCalls()


def service_of(calls: FakeCalls, resource: Resource = CORE, **more: Any) -> DevicePluginService:
    return DevicePluginService(resource=resource, table=make_table(3), calls=calls, **more)


@contextmanager
def serving(folder: Path, service: DevicePluginService) -> Iterator[PluginClient]:
    """Serve, and connect as a kubelet does."""
    server = PluginServer(service, folder / "vcore.sock")
    with closing(PluginClient("", server.socket)) as connected:
        yield connected
    server.stop()


@pytest.fixture
def running(folder: Path, calls: FakeCalls) -> Iterator[PluginServer]:
    server = PluginServer(service_of(calls), folder / "vcore.sock")
    yield server
    server.stop()


@pytest.fixture
def client(running: PluginServer) -> Iterator[PluginClient]:
    with closing(PluginClient("", running.socket)) as connected:
        yield connected


CALLS: dict[str, Callable[[PluginClient], object]] = {
    "prefer": lambda client: client.prefer(("a",), (), 1),
    "allocate": lambda client: client.allocate(("a",)),
    "prestart": lambda client: client.pre_start(("a",)),
}


def test_devices_mounts_and_cdi_names_reach_the_kubelet(
    client: PluginClient, calls: FakeCalls
) -> None:
    calls.edits = ContainerEdits(
        devices=("/dev/nvidia0",),
        mounts=(Mount("/etc/vcuda", "/h/files"), Mount("/w", "/h/w", read_only=False)),
        cdi=("nvidia.com/gpu=0", "nvidia.com/gpu=1"),
    )
    allocated: Any = client.allocate(("a",))
    (device,) = allocated.devices
    assert (device.host_path, device.permissions) == ("/dev/nvidia0", "rw")
    assert [(each.container_path, each.host_path, each.read_only) for each in allocated.mounts] == [
        ("/etc/vcuda", "/h/files", True),
        ("/w", "/h/w", False),
    ]
    assert [each.name for each in allocated.cdi_devices] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


@pytest.mark.parametrize("call", CALLS)
def test_an_internal_error_fails_one_call_shows_no_internals_and_the_server_continues(
    client: PluginClient, calls: FakeCalls, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls.error = KeyError("secret")
    with pytest.raises(PluginCallFailed) as failed:
        CALLS[call](client)
    assert str(failed.value) == (
        "rpc error: code = Internal desc = gpu-turnstile failed on this node: see its log; "
        "the pod can be created again"
    )
    assert "secret" in caplog.text  # the log has the reason
    calls.error = None
    CALLS[call](client)


def test_a_call_of_a_replaced_kubelet_is_not_logged_as_a_defect(
    client: PluginClient, calls: FakeCalls, caplog: pytest.LogCaptureFixture
) -> None:
    calls.error = KubeletReplaced("another kubelet runs now")
    with pytest.raises(PluginCallFailed, match="code = Aborted"):
        client.allocate(("a",))
    assert "call failed" not in caplog.text


def test_only_refusals_of_the_kubelets_serial_calls_wait(folder: Path, calls: FakeCalls) -> None:
    waits: list[str] = []
    service = service_of(calls, before_refusal=lambda: waits.append(calls.asked[-1][0]))
    with serving(folder, service) as client:
        for error in (None, OSError("secret"), PlacementError("no card fits")):
            calls.error = error
            for call in CALLS.values():
                with suppress(PluginCallFailed):
                    call(client)
    assert waits == ["prefer", "allocate"]


@pytest.mark.parametrize(("resource", "count"), [(CORE, 300), (MEMORY, 96)])
def test_every_slot_is_listed_healthy_with_the_numa_node_of_its_card(
    folder: Path, calls: FakeCalls, resource: Resource, count: int
) -> None:
    with serving(folder, service_of(calls, resource, numa=True)) as client:
        devices = next(client.watch())
    assert [each.id for each in devices] == list(make_table(3).slots(resource))
    assert len(devices) == count
    assert all(each.healthy for each in devices)
    nodes = {(each.id.partition("::")[0], each.nodes) for each in devices}
    assert nodes == {("GPU-0", (0,)), ("GPU-1", (1,)), ("GPU-2", ())}


class Ended:
    """The context of a call that ended before it was handled."""

    def add_callback(self, _callback: object) -> bool:
        return False


def test_a_stream_that_has_already_ended_is_not_served(calls: FakeCalls) -> None:
    ended = cast(grpc.ServicerContext, Ended())
    assert list(service_of(calls).ListAndWatch(pb.Empty(), ended)) == []


def test_a_stream_ends_without_an_error_when_the_server_stops(
    running: PluginServer, client: PluginClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "simulator.kubelet")
    stream = client.watch()
    assert next(stream)
    running.stop()
    assert list(stream) == []
    assert caplog.messages == []


def test_streams_that_the_kubelet_has_closed_free_their_threads(running: PluginServer) -> None:
    """A kubelet that often reconnects must not occupy all threads."""
    for _ in range(30):
        with closing(PluginClient("", running.socket)) as client:
            next(client.watch())
    with closing(PluginClient("", running.socket)) as client:
        client.allocate(("a",))


def test_a_call_in_progress_finishes_when_the_server_stops(
    running: PluginServer,
    client: PluginClient,
    calls: FakeCalls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(resource: Resource, device_ids: object) -> ContainerEdits:
        entered.set()
        assert go_on.wait(DEADLINE_S)
        return ContainerEdits({"late": "yes"})

    monkeypatch.setattr(calls, "allocate", wait)
    with ThreadPoolExecutor(2) as pool:
        response = pool.submit(client.allocate, ("a",))
        assert entered.wait(DEADLINE_S)
        stopped = pool.submit(running.stop, within=DEADLINE_S)
        go_on.set()
        found: Any = response.result(DEADLINE_S)
        assert dict(found.envs) == {"late": "yes"}
        stopped.result(DEADLINE_S)


def test_a_socket_file_left_by_an_ended_process_is_replaced(folder: Path, calls: FakeCalls) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "vcore.sock"))
    with serving(folder, service_of(calls)) as client:
        client.allocate(("a",))


def test_a_socket_that_cannot_be_bound_is_an_os_error(folder: Path, calls: FakeCalls) -> None:
    path = folder / "none" / "vcore.sock"
    with pytest.raises(OSError, match=rf"^cannot bind {path}: "):
        PluginServer(service_of(calls), path)


def test_refusals_are_immediate_in_a_burst_and_then_rate_limited() -> None:
    clock = FakeClock()
    pace = RefusalPace(clock)
    clock.now += 3600  # no more than a burst is saved meanwhile
    assert [pace.delay() for _ in range(BURST)] == pytest.approx([0] * BURST)
    begun = clock.now
    for _ in range(100):
        clock.now += pace.delay()
    assert clock.now - begun == pytest.approx(100 / PER_SECOND)
    assert max(pace.delay() for _ in range(200)) == LONGEST_SECONDS


# --- the one message that lists every slot --------------------------------------------

MIB = 1 << 20
UUID = "GPU-00000000-5eed-4a2d-8c1f-00000000000{}"


def node(cards: int, memory: int, block: int, *, numa: int | None = 0) -> DeviceTable:
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
