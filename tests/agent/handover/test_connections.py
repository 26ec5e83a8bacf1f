"""The kubelet's connections: found, read no more, held, and closed when something arrives."""

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.handover.connections import HeldConnections, accepted_on, is_upkeep, stop_reading
from agent.kubelet.api import deviceplugin_pb2 as pb
from agent.kubelet.api import deviceplugin_pb2_grpc as rpc
from agent.kubelet.server import DevicePluginService, PluginServer
from tests.agent.builders import CORE
from tests.agent.fakes import DEADLINE_S, FakeCalls, eventually, make_table


@pytest.fixture
def calls() -> FakeCalls:
    return FakeCalls()


@pytest.fixture
def server(folder: Path, calls: FakeCalls) -> Iterator[PluginServer]:
    service = DevicePluginService(resource=CORE, table=make_table(1), calls=calls)
    serving = PluginServer(service, folder / "vcore-1.sock")
    yield serving
    serving.stop()


@contextlib.contextmanager
def dialled(server: PluginServer) -> Iterator[rpc.DevicePluginStub]:
    """A kubelet that streams."""
    with grpc.insecure_channel(
        f"unix:{server.socket}", options=(("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        stub = rpc.DevicePluginStub(channel)
        stream = stub.ListAndWatch(pb.Empty())
        next(iter(stream))
        yield stub
        stream.cancel()


def test_accepted_connections_are_found_and_nothing_else(server: PluginServer) -> None:
    assert accepted_on([server.socket]) == []
    with dialled(server), dialled(server):
        found = accepted_on([server.socket])
        assert len(found) == 2
        for each in found:
            borrowed = socket.socket(fileno=os.dup(each))
            assert borrowed.getsockname() == str(server.socket)
            borrowed.close()
    assert accepted_on([Path("/nowhere.sock")]) == []


def test_a_call_on_a_connection_that_is_read_no_more_stays_in_the_kernel(
    server: PluginServer, calls: FakeCalls
) -> None:
    """gRPC must not swallow what a successor has to find."""
    with dialled(server) as stub:
        stop_reading(accepted_on([server.socket]))
        with pytest.raises(grpc.RpcError) as caught:
            stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["a"]), timeout=0.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert calls.asked == []
        (left,) = accepted_on([server.socket])
        borrowed = socket.socket(fileno=os.dup(left))
        assert borrowed.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        borrowed.close()


class Tasks:
    """The threads of a process, as ``/proc`` shows them at each look; a look takes no time."""

    def __init__(self, folder: Path, *looks: Mapping[int, str]) -> None:
        self.folder, self.looks, self.looked, self.now = folder, looks, -1, 0.0
        self.sleep(0)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.looked += 1
        shutil.rmtree(self.folder, ignore_errors=True)
        states = self.looks[min(self.looked, len(self.looks) - 1)]
        for thread, state in {**states, threading.get_native_id(): "R"}.items():
            (self.folder / str(thread)).mkdir(parents=True)
            if state:  # else it has just ended
                (self.folder / str(thread) / "stat").write_text(f"{thread} (a) R) {state} 1 2\n")


RUNS, SLEEPS = {1: "S", 2: "R"}, {1: "S", 2: "S"}


@pytest.mark.parametrize(
    ("looks", "needed"),
    [
        ([SLEEPS], 2),
        ([{1: "D", 2: ""}], 2),
        ([RUNS, SLEEPS], 3),
        ([RUNS, SLEEPS, RUNS, SLEEPS], 5),  # one look may have come between two calls
    ],
)
def test_reading_has_stopped_once_two_looks_find_every_other_thread_asleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[Mapping[int, str]], needed: int
) -> None:
    tasks = Tasks(tmp_path / "task", *looks)
    monkeypatch.setattr("agent.handover.connections._TASKS", tasks.folder)
    monkeypatch.setattr("agent.handover.connections.time", tasks)
    stop_reading([])
    assert tasks.looked == needed


def test_a_thread_that_never_sleeps_holds_a_handover_up_for_half_a_second_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(tmp_path / "task", RUNS)
    monkeypatch.setattr("agent.handover.connections._TASKS", tasks.folder)
    monkeypatch.setattr("agent.handover.connections.time", tasks)
    stop_reading([])
    assert tasks.now == pytest.approx(0.5, abs=0.01)


def test_a_held_connection_stays_open_until_the_other_side_speaks() -> None:
    ours, kubelets = socket.socketpair()
    broken = threading.Event()
    held = HeldConnections(broken.set)
    held.hold([ours.detach()])
    assert len(held.descriptors) == 1
    kubelets.settimeout(DEADLINE_S)
    kubelets.send(b"a call")
    assert broken.wait(DEADLINE_S)
    with contextlib.suppress(ConnectionResetError):  # unread data was there: also an end
        assert kubelets.recv(100) == b""
    assert held.descriptors == []
    kubelets.close()


PING = bytes.fromhex("000008060100000000") + b"12345678"
WINDOW_UPDATE = bytes.fromhex("000004080000000001") + b"1234"
SETTINGS_ACK = bytes.fromhex("000000040100000000")
SETTINGS = bytes.fromhex("00000c040000000000") + b"x" * 12
HEADERS = bytes.fromhex("000003010400000003") + b"abc"
GOAWAY = bytes.fromhex("000008070000000000") + b"x" * 8


@pytest.mark.parametrize(
    "data", [PING, SETTINGS_ACK, PING + WINDOW_UPDATE + SETTINGS, PING * 100], ids=len
)
def test_the_upkeep_of_a_connection_is_no_call(data: bytes) -> None:
    ours, kubelets = socket.socketpair()
    held = HeldConnections()
    held.hold([ours.detach()])
    kubelets.sendall(data)
    eventually(lambda: not unread(kubelets), "it is read")
    assert len(held.descriptors) == 1
    kubelets.close()


def unread(sender: socket.socket) -> int:
    """Bytes that the other side has not read yet."""
    return int.from_bytes(fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


@pytest.mark.parametrize(
    "data",
    [HEADERS, GOAWAY, PING + HEADERS, PING[:9], PING[:3], b"x", PING[5:]],
    ids=["call", "goaway", "ping and call", "no body", "no header", "one byte", "amid a frame"],
)
def test_everything_else_is_a_call(data: bytes) -> None:
    assert not is_upkeep(data)


@given(st.binary(min_size=1, max_size=64))
def test_whatever_comes_is_judged(data: bytes) -> None:
    assert is_upkeep(data) in (True, False)
    assert not is_upkeep(HEADERS + data)


def test_a_connection_that_the_other_side_closes_is_let_go_without_a_word() -> None:
    ours, kubelets = socket.socketpair()
    broken = threading.Event()
    held = HeldConnections(broken.set)
    held.hold([ours.detach()])
    kubelets.close()
    eventually(lambda: held.descriptors == [], "it is let go")
    assert not broken.is_set()


def test_what_is_no_connection_is_not_held() -> None:
    held = HeldConnections()
    reader, writer = os.pipe()
    held.hold([reader])
    assert held.descriptors == []
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"nobody has the other end open any more")
    os.close(writer)


def test_a_call_on_a_connection_that_a_successor_holds_fails_and_does_not_wait(
    server: PluginServer,
) -> None:
    """The kubelet's calls have no deadline."""
    with dialled(server) as stub:
        found = accepted_on([server.socket])
        stop_reading(found)
        held = HeldConnections()
        held.hold(map(os.dup, found))
        with pytest.raises(grpc.RpcError) as caught:
            stub.PreStartContainer(
                pb.PreStartContainerRequest(devices_ids=["a"]), timeout=DEADLINE_S
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
