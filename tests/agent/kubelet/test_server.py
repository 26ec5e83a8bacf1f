"""The device plugin's gRPC server, over real unix sockets."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from agent.errors import KubeletReplaced, PlacementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.kubelet.server import (
    BURST,
    LONGEST_SECONDS,
    PER_SECOND,
    DevicePluginService,
    PluginServer,
    RefusalPace,
)
from common.grpc_services import make_stub
from common.kubelet_api import deviceplugin_pb2 as pb
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import (
    DEADLINE_S,
    FakeCalls,
    FakeClock,
    make_table,
)


@contextmanager
def plugin(socket: Path) -> Iterator[SimpleNamespace]:
    """Call a device plugin as the kubelet does."""
    options = (("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0))
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield make_stub(channel, pb.DESCRIPTOR, "DevicePlugin")


def call_preferred(stub: SimpleNamespace, ids: Sequence[str], size: int) -> list[str]:
    """Call ``GetPreferredAllocation`` for one container."""
    container = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=ids, allocation_size=size
    )
    request = pb.PreferredAllocationRequest(container_requests=[container])
    return list(
        stub.GetPreferredAllocation(request, timeout=DEADLINE_S).container_responses[0].deviceIDs
    )


def call_allocate(stub: SimpleNamespace, ids: Sequence[str]) -> Any:
    """Call ``Allocate`` for one container."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
    return stub.Allocate(request, timeout=DEADLINE_S).container_responses[0]


def call_prestart(stub: SimpleNamespace, ids: Sequence[str]) -> None:
    """Call ``PreStartContainer``."""
    stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=DEADLINE_S)


@pytest.fixture
def calls() -> FakeCalls:
    return FakeCalls()


def service_of(calls: FakeCalls, resource: Resource = CORE, **more: Any) -> DevicePluginService:
    return DevicePluginService(resource=resource, table=make_table(3), calls=calls, **more)


@contextmanager
def serving(folder: Path, service: DevicePluginService) -> Iterator[SimpleNamespace]:
    """Serve, and connect as a kubelet does."""
    server = PluginServer(service, folder / "vcore.sock")
    with plugin(server.socket) as connected:
        yield connected
    server.stop()


@pytest.fixture
def running(folder: Path, calls: FakeCalls) -> Iterator[PluginServer]:
    server = PluginServer(service_of(calls), folder / "vcore.sock")
    yield server
    server.stop()


@pytest.fixture
def stub(running: PluginServer) -> Iterator[SimpleNamespace]:
    with plugin(running.socket) as connected:
        yield connected


CALLS: dict[str, Callable[[SimpleNamespace, list[str]], Any]] = {
    "prefer": lambda stub, ids: call_preferred(stub, ids, len(ids)),
    "allocate": call_allocate,
    "prestart": call_prestart,
}


def test_devices_mounts_and_cdi_names_reach_the_kubelet(
    stub: SimpleNamespace, calls: FakeCalls
) -> None:
    calls.edits = ContainerEdits(
        devices=("/dev/nvidia0",),
        mounts=(Mount("/etc/vcuda", "/h/files"), Mount("/w", "/h/w", read_only=False)),
        cdi=("nvidia.com/gpu=0", "nvidia.com/gpu=1"),
    )
    allocated = call_allocate(stub, ["a"])
    (device,) = allocated.devices
    assert (device.host_path, device.permissions) == ("/dev/nvidia0", "rw")
    assert [(each.container_path, each.host_path, each.read_only) for each in allocated.mounts] == [
        ("/etc/vcuda", "/h/files", True),
        ("/w", "/h/w", False),
    ]
    assert [each.name for each in allocated.cdi_devices] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


@pytest.mark.parametrize("call", CALLS)
def test_an_internal_error_fails_one_call_shows_no_internals_and_the_server_continues(
    stub: SimpleNamespace, calls: FakeCalls, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls.error = KeyError("secret")
    with pytest.raises(grpc.RpcError) as failed:
        CALLS[call](stub, ["a"])
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == (
        "gpu-turnstile failed on this node: see its log; the pod can be created again"
    )
    assert "secret" in caplog.text  # the log has the reason
    calls.error = None
    CALLS[call](stub, ["a"])


def test_a_call_of_a_replaced_kubelet_is_not_logged_as_a_defect(
    stub: SimpleNamespace, calls: FakeCalls, caplog: pytest.LogCaptureFixture
) -> None:
    calls.error = KubeletReplaced("another kubelet runs now")
    with pytest.raises(grpc.RpcError) as failed:
        call_allocate(stub, ["a"])
    assert failed.value.code() is grpc.StatusCode.ABORTED
    assert "call failed" not in caplog.text


def test_only_refusals_of_the_kubelets_serial_calls_wait(folder: Path, calls: FakeCalls) -> None:
    waits: list[str] = []
    service = service_of(calls, before_refusal=lambda: waits.append(calls.asked[-1][0]))
    with serving(folder, service) as stub:
        for error in (None, OSError("secret"), PlacementError("no card fits")):
            calls.error = error
            for call in CALLS.values():
                with suppress(grpc.RpcError):
                    call(stub, ["a"])
    assert waits == ["prefer", "allocate"]


@pytest.mark.parametrize(("resource", "count"), [(CORE, 300), (MEMORY, 96)])
def test_every_slot_is_listed_healthy_with_the_numa_node_of_its_card(
    folder: Path, calls: FakeCalls, resource: Resource, count: int
) -> None:
    with serving(folder, service_of(calls, resource, numa=True)) as stub:
        devices = list(next(iter(stub.ListAndWatch(pb.Empty(), timeout=DEADLINE_S))).devices)
    assert [each.ID for each in devices] == list(make_table(3).slots(resource))
    assert len(devices) == count
    assert {each.health for each in devices} == {"Healthy"}
    assert {
        (each.ID.partition("::")[0], tuple(node.ID for node in each.topology.nodes))
        for each in devices
    } == {("GPU-0", (0,)), ("GPU-1", (1,)), ("GPU-2", ())}
    assert [each.HasField("topology") for each in devices[:: count // 3]] == [True, True, False]


class Ended:
    """The context of a call that ended before it was handled."""

    def add_callback(self, _callback: object) -> bool:
        return False


def test_a_stream_that_has_already_ended_is_not_served(calls: FakeCalls) -> None:
    ended = cast(grpc.ServicerContext, Ended())
    assert list(service_of(calls).ListAndWatch(pb.Empty(), ended)) == []


def test_a_stream_ends_promptly_when_the_server_stops(
    running: PluginServer, stub: SimpleNamespace
) -> None:
    stream = stub.ListAndWatch(pb.Empty(), timeout=DEADLINE_S)
    assert next(stream).devices
    running.stop()
    with pytest.raises(StopIteration):  # it ends without an error
        next(stream)


def test_streams_that_the_kubelet_has_closed_free_their_threads(
    running: PluginServer, calls: FakeCalls
) -> None:
    """A kubelet that often reconnects must not occupy all threads."""
    for _ in range(30):
        with plugin(running.socket) as stub:
            next(iter(stub.ListAndWatch(pb.Empty(), timeout=DEADLINE_S)))
    with plugin(running.socket) as stub:
        call_allocate(stub, ["a"])


def test_a_call_in_progress_finishes_when_the_server_stops(
    running: PluginServer, calls: FakeCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(resource: Resource, device_ids: object) -> ContainerEdits:
        entered.set()
        assert go_on.wait(DEADLINE_S)
        return ContainerEdits({"late": "yes"})

    monkeypatch.setattr(calls, "allocate", wait)
    with plugin(running.socket) as stub, ThreadPoolExecutor(2) as pool:
        response = pool.submit(call_allocate, stub, ["a"])
        assert entered.wait(DEADLINE_S)
        stopped = pool.submit(running.stop, within=DEADLINE_S)
        go_on.set()
        assert dict(response.result(DEADLINE_S).envs) == {"late": "yes"}
        stopped.result(DEADLINE_S)


def test_a_socket_file_left_by_an_ended_process_is_replaced(folder: Path, calls: FakeCalls) -> None:
    path = folder / "vcore.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    assert path.exists()
    with serving(folder, service_of(calls)) as stub:
        call_allocate(stub, ["a"])


def test_a_socket_that_cannot_be_bound_is_an_os_error(folder: Path, calls: FakeCalls) -> None:
    path = folder / "none" / "vcore.sock"
    with pytest.raises(OSError, match=rf"^cannot bind {path}: "):
        PluginServer(service_of(calls), path)


# --- the rate of refusals --------------------------------------------------------------


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
