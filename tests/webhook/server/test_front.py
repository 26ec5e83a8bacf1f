"""The front in this process: real sockets and TLS, a clock of the test's own."""

import errno
import os
import selectors
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from webhook.server.connection import Limits, Peer, Reply, State
from webhook.server.front import Front
from webhook.server.tls import server_context
from webhook.settings import Files

T = TypeVar("T")
DEADLINE = 30
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Told:
    """What an observer was told."""

    def __init__(self) -> None:
        self.flying = 0
        self.open = 0
        self.ends: Counter[tuple[State, str]] = Counter()

    def in_flight(self, change: int) -> None:
        self.flying += change

    def connected(self, change: int) -> None:
        self.open += change

    def ended(self, state: State, why: str) -> None:
        self.ends[state, why] += 1


class Stage:
    """A front that listens, and clients that run beside it."""

    def __init__(self, certificates: Path, limits: Limits) -> None:
        self.told = Told()
        self.now = 1000.0
        self.requests: list[tuple[bytes, Peer]] = []
        self.reply = Reply(b"answer", keep=True)
        self._authority = str(certificates / "ca.crt")
        self._pool = ThreadPoolExecutor(16)
        self.clients: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = self.listener.getsockname()
        context = server_context(Files(certificates / "tls.crt", certificates / "tls.key"))
        self.front = Front(
            listeners=[self.listener],
            context=lambda: context,
            answer=self._answer,
            limits=limits,
            clock=lambda: self.now,
            observer=self.told,
        )

    def _answer(self, request: bytes, peer: Peer) -> Reply:
        self.requests.append((request, peer))
        return self.reply

    def run(self, client: Callable[[], T]) -> T:
        """Let a client do something while the front turns."""
        future = self._pool.submit(client)
        while not future.done():
            self.front.turn(0.01)
        return future.result()

    def turn_until(self, holds: Callable[[], bool]) -> None:
        for _ in range(DEADLINE * 100):
            if holds():
                return
            self.front.turn(0.01)
        raise AssertionError("not in time")

    def plain(self) -> socket.socket:
        client = socket.create_connection(self.address, timeout=DEADLINE)
        self.clients.append(client)
        expected = self.told.open + 1
        self.turn_until(lambda: self.told.open == expected or bool(self.told.ends))
        return client

    def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self._authority)

        def connect() -> ssl.SSLSocket:
            plain = socket.create_connection(self.address, timeout=DEADLINE)
            self.clients.append(plain)
            return context.wrap_socket(plain, server_hostname="localhost")

        client = self.run(connect)
        self.clients.append(client)
        return client

    def ask(self, client: ssl.SSLSocket, request: bytes = GET) -> bytes:
        def ask() -> bytes:
            client.sendall(request)
            return client.recv(65536)

        return self.run(ask)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.front.close()
        self._pool.shutdown()


Make = Callable[..., Stage]


@pytest.fixture
def make(certificates: Path) -> Iterator[Make]:
    stages: list[Stage] = []

    def make(*, connections: int = 10, buffered: int = 10**6, body: int = 10**6) -> Stage:
        stages.append(Stage(certificates, Limits(connections, buffered, body)))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
        assert (stage.told.open, stage.told.flying) == (0, 0)


def test_a_request_is_answered_and_the_connection_kept(make: Make) -> None:
    stage = make()
    client = stage.connect()
    assert stage.ask(client) == b"answer"
    assert stage.ask(client) == b"answer"
    (request, peer), _ = stage.requests
    assert request == GET
    assert peer == Peer(client.getsockname(), stage.address, verified=False)
    assert (stage.told.open, stage.told.flying, stage.front.connections) == (1, 0, 1)


def test_after_a_last_answer_the_client_sees_the_end(make: Make) -> None:
    stage = make()
    stage.reply = Reply(b"bye", keep=False)
    client = stage.connect()
    assert stage.ask(client) == b"bye"
    assert stage.run(lambda: client.recv(100)) == b""
    client.close()
    stage.turn_until(lambda: stage.told.open == 0)


def test_what_follows_a_last_answer_is_thrown_away(make: Make) -> None:
    stage = make()
    stage.reply = Reply(b"bye", keep=False)
    client = stage.connect()
    assert stage.ask(client, GET + b"x" * 300_000) == b"bye"
    assert len(stage.requests) == 1


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        (State.HANDSHAKE, 10),
        (State.FRESH, 120),
        (State.READING, 15),
        (State.IDLE, 120),
        (State.WRITING, 10),
        (State.LINGERING, 5),
    ],
)
def test_nothing_waits_for_ever(make: Make, state: State, seconds: float) -> None:
    stage = make()
    if state is State.HANDSHAKE:
        stage.plain()
    else:
        client = stage.connect()
        if state is State.READING:
            client.sendall(GET[:5])
            stage.turn_until(lambda: stage.told.flying == 1)
        elif state is State.WRITING:
            stage.reply = Reply(b"x" * 50_000_000, keep=True)
            client.sendall(GET)
            stage.turn_until(lambda: bool(stage.requests))
        elif state is State.LINGERING:
            stage.reply = Reply(b"bye", keep=False)
            stage.ask(client)
        elif state is State.IDLE:
            stage.ask(client)
    stage.now += seconds - 0.1
    stage.front.turn(0)
    assert stage.told.open == 1
    stage.now += 0.2
    stage.front.turn(0)
    assert stage.told.open == 0
    assert stage.told.ends == {(state, "timeout"): 1}


def test_an_answer_that_does_not_fit_is_sent_when_the_client_takes_it(make: Make) -> None:
    stage = make()
    stage.reply = Reply(b"x" * 20_000_000, keep=True)
    client = stage.connect()
    client.sendall(GET * 2)  # and the second waits for the first
    stage.turn_until(lambda: len(stage.requests) == 1)
    for _ in range(5):
        stage.front.turn(0)
    assert len(stage.requests) == 1

    def take(count: int) -> int:
        taken = 0
        while taken < count:
            taken += len(client.recv(65536))
        return taken

    assert stage.run(lambda: take(40_000_000)) == 40_000_000
    assert len(stage.requests) == 2
    stage.turn_until(lambda: stage.told.flying == 0)


def test_who_has_had_no_answer_longest_makes_room(make: Make) -> None:
    stage = make(connections=3)
    proven = stage.connect()
    stage.ask(proven)
    half_open, silent = stage.plain(), stage.connect()
    assert half_open
    late = stage.connect()
    assert stage.told.ends == {(State.HANDSHAKE, "no-room"): 1}
    assert stage.ask(late) == b"answer"
    later = stage.connect()
    assert stage.told.ends[State.FRESH, "no-room"] == 1
    assert stage.ask(proven) == b"answer"
    assert stage.ask(later) == b"answer"
    assert stage.told.open == 3
    stage.connect()  # all have had answers: the one idle longest goes
    assert stage.told.ends[State.IDLE, "no-room"] == 1
    assert stage.run(lambda: late.recv(1)) == b""
    silent.close()


def test_the_largest_of_too_many_unfinished_bodies_goes(make: Make) -> None:
    stage = make(buffered=100_000)
    head = b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"
    small, large = stage.connect(), stage.connect()
    for client, size in ((small, 30_000), (large, 60_000)):
        stage.run(lambda client=client, size=size: client.sendall(head + b"x" * size))  # type: ignore[misc]  # mypy cannot infer defaults
    stage.turn_until(lambda: stage.told.flying == 2)
    stage.run(lambda: small.sendall(b"x" * 15_000))
    stage.turn_until(lambda: stage.told.ends != {})
    assert stage.told.ends == {(State.READING, "memory"): 1}
    assert stage.run(lambda: large.recv(1)) == b""
    assert stage.told.open == 1


def test_a_body_too_large_is_answered_at_once_and_read_to_its_end(make: Make) -> None:
    stage = make(body=1000)
    client = stage.connect()
    head = b"POST / HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n"

    def send_all_then_look() -> bytes:
        client.sendall(head + b"x" * 2_000_000)
        return client.recv(100)

    assert stage.run(send_all_then_look) == b"answer"
    assert stage.requests[0][0].startswith(head)
    assert len(stage.requests[0][0]) < 1_200_000


def test_a_client_that_waits_for_continue_gets_it_once(make: Make) -> None:
    stage = make()
    client = stage.connect()
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    assert stage.ask(client, head) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(b"a")
    assert stage.ask(client, b"bc") == b"answer"
    assert stage.requests[0][0] == b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


@pytest.mark.parametrize("sent", [b"", GET[:5], GET])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_away_leaves_nothing(make: Make, sent: bytes, reset: bool) -> None:
    stage = make()
    client = stage.connect()
    if sent:
        stage.run(lambda: client.sendall(sent))
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    stage.turn_until(lambda: stage.told.open == 0)
    assert stage.told.flying == 0
    assert stage.told.ends == {}


def test_what_is_no_tls_is_ended_without_a_reset(make: Make) -> None:
    stage = make()
    client = stage.plain()
    client.sendall(GET)
    assert stage.run(lambda: client.recv(100)) == b""
    assert stage.told.ends == {(State.HANDSHAKE, "tls"): 1}
    client.close()
    stage.turn_until(lambda: stage.told.open == 0)


def test_draining_waits_for_a_request_under_way_and_for_nothing_idle(make: Make) -> None:
    stage = make()
    idle, busy, silent = stage.connect(), stage.connect(), stage.connect()
    stage.ask(idle)
    stage.run(lambda: busy.sendall(GET[:5]))
    stage.turn_until(lambda: stage.told.flying == 1)
    stage.reply = Reply(b"last", keep=False)

    def finish() -> bytes:
        assert idle.recv(1) == b""  # so it is draining
        busy.sendall(GET[5:])
        answer = busy.recv(100)
        busy.close()
        silent.close()
        return answer

    future = stage._pool.submit(finish)
    stage.front.drain(within=DEADLINE)
    assert future.result(DEADLINE) == b"last"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(stage.address, timeout=1)


def test_draining_ends_in_time_whatever_is_under_way(make: Make) -> None:
    stage = make()
    client = stage.connect()
    stage.run(lambda: client.sendall(GET[:5]))
    ticks = iter(range(1000, 2000))
    stage.front._clock = lambda: next(ticks)
    stage.front.drain(within=5)
    assert stage.told.open == 0


def test_silent_connections_are_granted_a_moment_when_draining(make: Make) -> None:
    stage = make()
    stage.connect()
    stage.plain()
    ticks = iter(range(100_000))
    stage.front._clock = lambda: 1000 + next(ticks) / 10
    stage.front.drain(within=DEADLINE)
    assert 10 <= next(ticks) < 100  # each look at the clock is a tenth of a second


def test_a_turn_ends_when_it_is_woken(make: Make) -> None:
    stage = make()
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        stage.front.wake_on(read)
        os.write(write, b"x")
        stage.front.turn(DEADLINE)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        stage.front._selector.unregister(read)
        os.close(read)
        os.close(write)


class Exhausted:
    """A listener whose process has no file descriptor left."""

    def __init__(self) -> None:
        self.accepts = 0

    def accept(self) -> None:
        self.accepts += 1
        raise OSError(errno.EMFILE, "too many open files")


def test_without_a_file_descriptor_to_spare_somebody_goes(make: Make) -> None:
    stage = make()
    stage.connect()
    listener = Exhausted()
    assert stage.front._accept(listener) is False  # type: ignore[arg-type]  # a fake
    assert stage.told.ends == {(State.FRESH, "no-room"): 1}
    assert stage.front._accept(listener) is False  # type: ignore[arg-type]  # nobody is left
    assert listener.accepts == 2


def test_many_at_once_are_all_served(make: Make) -> None:
    stage = make(connections=40)

    def client() -> bytes:
        context = ssl.create_default_context(cafile=stage._authority)
        with (
            socket.create_connection(stage.address, timeout=DEADLINE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(GET)
            return secure.recv(100)

    def all_of_them() -> list[bytes]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda _: client(), range(40)))

    assert stage.run(all_of_them) == [b"answer"] * 40
    stage.turn_until(lambda: stage.told.open == 0)
    assert stage.told.ends == {}


def test_interest_is_reading_when_all_is_said(make: Make) -> None:
    stage = make()
    client = stage.connect()
    stage.ask(client)
    (key,) = (
        key for key in stage.front._selector.get_map().values() if key.fileobj is not stage.listener
    )
    assert key.events == selectors.EVENT_READ
