"""The relay between real sockets and real processes."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable

import pytest

from agent.enforcement.vcuda.limits import Limits
from agent.errors import EnforcementError
from agent.runtime.cgroups import ContainerCgroup
from tests.agent.enforcement.vcuda.relay_site import T1, T2, RelaySite, ended, hear
from tests.agent.fakes import eventually


def test_nobody_is_known_by_a_name_that_is_not_the_relays(relay_site: RelaySite) -> None:
    for name in ("", "unix:", "unix:/x", "unix-abstract:gpu-turnstile-1", "ipv4:127.0.0.1:5"):
        assert relay_site.relay.peer(name) is None


def test_a_replaced_directory_has_another_socket_and_the_old_one_is_closed(
    relay_site: RelaySite,
) -> None:
    old = relay_site.ticket(T1)
    (ticket_socket,) = relay_site.relay.ticket_sockets()
    with relay_site.connect(T1) as lingering:
        relay_site.peer(lingering)
        old.rename(relay_site.folder / "old")
        relay_site.ticket(T1)
        assert ended(lingering)
    (other,) = relay_site.relay.ticket_sockets()
    assert other is not ticket_socket
    with pytest.raises(EnforcementError, match="ticket has ended"), ticket_socket.folder():
        pytest.fail("it is closed")
    with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as late:
        late.connect(str(relay_site.folder / "old" / "vcuda.sock"))


def test_a_closed_socket_is_not_listened_at(relay_site: RelaySite) -> None:
    relay_site.ticket(T1)
    relay_site.ticket(T2)
    with relay_site.connect(T1) as connection:
        name = relay_site.peer(connection)
        assert relay_site.relay.peer(name) is not None
        relay_site.relay.close(T1)
        assert relay_site.relay.peer(name) is None
        relay_site.relay.close("there is none")
        assert ended(connection)
    with pytest.raises(ConnectionRefusedError):
        relay_site.connect(T1)
    with relay_site.connect(T2) as connection:
        assert relay_site.peer(connection)


# --- what is passed on -------------------------------------------------------------------


def test_a_peer_that_stops_talking_still_hears_the_answer(relay_site: RelaySite) -> None:
    relay_site.ticket(T1)
    relay_site.upstream.hold.clear()
    with relay_site.connect(T1) as connection:
        connection.sendall(b"question")
        connection.shutdown(socket.SHUT_WR)
        relay_site.upstream.hold.set()
        assert hear(connection, 100) == b"question"


def test_a_peer_that_talks_too_much_is_let_go(make: Callable[..., RelaySite]) -> None:
    relay_site = make(Limits(bytes=100_000, seconds=60))
    relay_site.ticket(T1)
    with (
        relay_site.connect(T1) as talker,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        for _ in range(1000):
            talker.sendall(b"x" * 1000)
            talker.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                talker.recv(65536)
            talker.settimeout(20)
        pytest.fail("it may talk without end")


def test_a_peer_that_does_not_listen_holds_nobody_up(make: Callable[..., RelaySite]) -> None:
    """What it is sent stays with the sender: the relay keeps one piece of it."""
    relay_site = make(Limits(bytes=64 << 20, seconds=60))
    relay_site.ticket(T1)
    relay_site.ticket(T2)
    with relay_site.connect(T1) as deaf:
        deaf.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:
                deaf.send(b"x" * 65536)
        with relay_site.connect(T2) as other:
            assert relay_site.peer(other)


# --- what peers may use up ---------------------------------------------------------------


def test_a_socket_serves_so_many_and_the_next_waits_its_turn(
    make: Callable[..., RelaySite],
) -> None:
    relay_site = make(Limits(socket=2, seconds=60))
    relay_site.ticket(T1)
    relay_site.ticket(T2)
    first, second, third = (relay_site.connect(T1) for _ in range(3))
    for each in (first, second, third):
        each.sendall(b"x")
    assert hear(first, 1) == hear(second, 1) == b"x"
    third.settimeout(0.2)
    with pytest.raises(TimeoutError):
        third.recv(1)
    with relay_site.connect(T2) as other:  # of another socket nobody waits
        assert relay_site.peer(other)
    first.close()
    third.settimeout(20)
    assert hear(third, 1) == b"x"
    for each in (second, third):
        each.close()


def test_a_peer_that_says_nothing_is_let_go(make: Callable[..., RelaySite]) -> None:
    relay_site = make(Limits(seconds=0.2))
    relay_site.ticket(T1)
    with relay_site.connect(T1) as slow:
        assert ended(slow)
    eventually(lambda: relay_site.upstream.open == 0, "the far side is told")
    (relay_site.folder / "up.sock").unlink()  # nor is anybody kept where there is no server
    with relay_site.connect(T1) as connection:
        assert ended(connection)


def test_stopping_ends_connections_and_sockets(make: Callable[..., RelaySite]) -> None:
    relay_site = make(Limits(seconds=60, last_seconds=0))
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        relay_site.peer(connection)
        relay_site.relay.stop()
        assert ended(connection)
    with pytest.raises(ConnectionRefusedError):
        relay_site.connect(T1)
    folder = os.open(relay_site.folder, os.O_RDONLY)
    relay_site.relay.open(T2, folder)  # too late: nothing is listened at
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder)
    relay_site.relay.stop()


def test_a_peer_that_is_being_answered_hears_the_answer_before_the_relay_stops(
    make: Callable[..., RelaySite],
) -> None:
    """vcuda-controller's client asks once: without an answer it ends its program."""
    relay_site = make(Limits(seconds=60, last_seconds=60))
    relay_site.ticket(T1)
    connection = relay_site.connect(T1)
    relay_site.peer(connection)
    relay_site.upstream.hold.clear()
    connection.sendall(b"hello again")
    stopping = threading.Thread(target=relay_site.relay.stop)
    stopping.start()

    def refused() -> bool:
        try:
            relay_site.connect(T1).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually(refused, "nobody else is let in")
    relay_site.upstream.hold.set()
    assert hear(connection, 11) == b"hello again"
    connection.close()
    stopping.join()
    assert not relay_site.relay.alive


def test_an_error_that_nobody_foresaw_ends_the_relay(make: Callable[..., RelaySite]) -> None:
    """The agent is not alive then, and is started again."""

    def identify(_pid: int) -> ContainerCgroup | None:
        raise RuntimeError("unforeseen")

    relay_site = make(identify=identify)
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        assert ended(connection)
    eventually(lambda: not relay_site.relay.alive, "it has ended")


def test_a_relay_out_of_descriptors_serves_once_it_has_some(
    make: Callable[..., RelaySite], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay_site = make(Limits(per_second=100, seconds=60))
    real, failed = socket.socket.accept, threading.Event()

    def accept(listener: socket.socket) -> object:
        if threading.current_thread().name != "vcuda-relay" or failed.is_set():
            return real(listener)
        failed.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        assert relay_site.peer(connection)
    assert failed.is_set()


@pytest.mark.parametrize(
    ("limits", "pod", "most"),
    [
        # A pod of many containers would else take every descriptor of the agent.
        (Limits(pod=6, seconds=60), "greedy", 6),
        # Six ticket sockets cost eighteen descriptors; of thirty left a connection costs three.
        (Limits(pod=8, files=68, reserve=20, seconds=60), "", 10),
    ],
)
def test_connections_stay_within_the_budget_and_others_are_served(
    make: Callable[..., RelaySite], limits: Limits, pod: str, most: int
) -> None:
    relay_site = make(limits)
    ticket_sockets = [f"{number:020}" for number in range(5)]
    for digest in ticket_sockets:
        relay_site.ticket(digest, pod or digest)
    relay_site.ticket(T1, "modest")
    idle = [relay_site.connect(digest) for digest in ticket_sockets for _ in range(4)]
    try:
        eventually(lambda: relay_site.upstream.open == most, "the budget is used")
        with relay_site.connect(T1) as connection:
            relay_site.peer(connection)
        eventually(lambda: relay_site.upstream.open == most, "no more than that stay")
    finally:
        for each in idle:
            each.close()


def test_who_has_least_is_served_though_others_hold_all_connections(
    make: Callable[..., RelaySite],
) -> None:
    """The pods that hold most give up their oldest connection, not those that just begin."""
    relay_site = make(Limits(socket=4, pod=4, overall=8, seconds=60))
    ticket_sockets = {f"{number:020}": f"idle-{number}" for number in range(4)}
    for digest, pod in ticket_sockets.items():
        relay_site.ticket(digest, pod)
    idle = [relay_site.connect(digest) for digest in ticket_sockets for _ in range(4)]
    try:
        eventually(lambda: relay_site.upstream.open == 8, "all connections are taken")
        for number in range(3):
            digest = f"{100 + number:020}"
            relay_site.ticket(digest, f"late-{number}")
            with relay_site.connect(digest) as connection:
                relay_site.peer(connection)
        eventually(lambda: relay_site.upstream.open <= 8, "no more than that stay")
    finally:
        for each in idle:
            each.close()
