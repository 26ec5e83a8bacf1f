"""A webhook under siege, and whether those in earnest are served meanwhile."""

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Self

from bench.fuzz import damaged
from bench.process import resident_mib
from bench.reviews import review
from bench.servers import Running

_LARGE = 8 * 2**20
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Attack:
    """What one kind of attack did.

    Attributes:
        name: of it.
        reviews: how many honest reviews were sent meanwhile, each over a new connection.
        failed: how many of these were not answered with 200.
        worst_ms: the longest that one of them took.
        lost_workers: workers that are not there any more.
        internal_errors: answers with status 500.
        grown_mib: resident memory of the worker that grew most.
    """

    name: str
    reviews: int
    failed: int
    worst_ms: float
    lost_workers: int
    internal_errors: int
    grown_mib: float


class _Honest:
    """Sends a review after the other until told to stop."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took: list[float] = []
        self.failed = 0

    def _run(self) -> None:
        body = review(5000)
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                right = self._server.post(body, timeout=_PROBE_TIMEOUT_S) == 200
            except OSError:
                right = False
            self.took.append(time.monotonic() - began)
            self.failed += not right
            time.sleep(0.01)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def besiege(server: Running, connections: int, bodies: int, inputs: int) -> Sequence[Attack]:
    """Attack in every way, one after the other.

    Args:
        server: the webhook.
        connections: how many are opened and left: a third without a byte of TLS, a third
            with half a handshake, a third with half a request.
        bodies: how many of 8 MiB are sent.
        inputs: how many damaged requests are sent.
    """
    return (
        _attack(f"{connections} connections that never finish", server, _open(server, connections)),
        _attack(f"{bodies} bodies of 8 MiB", server, _send_large(server, bodies)),
        _attack(f"{inputs} damaged requests", server, _send_damaged(server, inputs)),
    )


def _attack(name: str, server: Running, attack: Iterator[None]) -> Attack:
    workers = server.workers()
    before = {each: resident_mib(each) for each in workers}
    with _Honest(server) as honest:
        for _ in attack:
            pass
    left = set(server.workers())
    grown = [resident_mib(each) - before[each] for each in workers if each in left]
    return Attack(
        name,
        len(honest.took),
        honest.failed,
        1000 * max(honest.took, default=0.0),
        len(set(workers) - left),
        server.internal_errors(),
        max(grown, default=0.0),
    )


def _open(server: Running, count: int) -> Iterator[None]:
    """Open connections as fast as they are taken, and hold them a while."""
    hello = _client_hello()
    context = server.tls
    with contextlib.ExitStack() as held:
        for number in range(count):
            with contextlib.suppress(OSError):
                plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
                held.callback(plain.close)
                if number % 3 == 1:
                    plain.sendall(hello[: len(hello) // 2])
                elif number % 30 == 2:  # handshakes cost this side as much as the other
                    secure = context.wrap_socket(plain, server_hostname="127.0.0.1")
                    held.callback(secure.close)
                    secure.sendall(b"POST /mutate/pods HTTP/1.1\r\nContent-Le")
            yield
        time.sleep(2)


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def _send_large(server: Running, count: int) -> Iterator[None]:
    """Send large bodies, four at once, half of them JSON of many small objects."""
    objects = b'{"a":[' + b"{}," * ((_LARGE - 16) // 3) + b"{}]}"
    bodies = (b" " * _LARGE, objects)

    def send(number: int) -> None:
        with contextlib.suppress(OSError):
            server.post(bodies[number % 2], timeout=60)

    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(send, range(count)):
            yield


def _send_damaged(server: Running, count: int) -> Iterator[None]:
    """Send damaged requests, as many on a connection as it takes, without awaiting answers."""
    source, random = damaged(7), Random(7)  # noqa: S311 -- is to be repeatable
    context = server.tls
    sent = 0
    while sent < count:
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            plain = held.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=10)
            )
            if random.random() < 0.1:
                sent += 1
                plain.sendall(next(source))  # without TLS
                continue
            secure = held.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            for _ in range(random.randint(1, 20)):
                sent += 1
                secure.sendall(next(source))
                if _answered(secure):
                    secure.recv(65536)
        sent += 1
        yield


def _answered(secure: ssl.SSLSocket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(secure, selectors.EVENT_READ)
        return bool(selector.select(0.002))
