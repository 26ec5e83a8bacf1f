"""Cost of a review, and honest reviews while other clients stall.

The server's CPU time is measured over a kept connection with TLS, and compared with ``json.loads``
of the same review in this process.
"""

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from timeit import timeit

from bench.process import cpu_us, resident_mib
from bench.result import Cell, Result, Table, wrong
from bench.reviews import review
from bench.servers import RunningServer, make_certificates, raise_file_limit, serving
from simulator.cluster import free_port

NAME = "webhook"

_SIZES = (5_000, 50_000)
_US = 1e6


def run(*, seconds: float = 2.0, turns: int = 3, stalled: int = 6_000) -> Result:
    """Measure.

    Args:
        seconds: length of each turn.
        turns: number of turns of each size.
        stalled: number of connections that never finish a request.

    Raises:
        ProcessFailed: a server did not become ready.
    """
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="gpu-turnstile-bench-") as made:
        folder = Path(made)
        make_certificates(folder)
        port = free_port()
        options = f"webhook --host 127.0.0.1 --port {port} --drain-delay 0"
        files = ("--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key"))
        with serving([*options.split(), *files], folder, port) as server:
            rows = [costs(server, size, seconds, turns) for size in _SIZES]
            (worker,) = server.workers()
            resident = resident_mib(worker)
            with _reviewing(server) as reviews:
                _stall(server, stalled)
            grown = resident_mib(worker) - resident
            same = server.workers() == (worker,)
    tables = (
        Table(
            f"CPU time of one review over TLS, microseconds, medians of {turns} turns",
            ("size", "webhook", "json.loads", "webhook : json.loads"),
            rows,
        ),
        Table(
            f"{stalled} stalled connections; meanwhile one client sends reviews over new ones",
            ("reviews", "failed", "resident MiB", "grown MiB"),
            [(reviews.sent, reviews.failed, resident, grown)],
        ),
    )
    failures = {
        "reviews that failed while other clients stalled": reviews.failed,
        "workers lost while clients stalled": int(not same),
    }
    return Result(NAME, tables, wrong(failures))


@dataclass(slots=True)
class ReviewCount:
    """The number of reviews from one client, and of those without a response 200."""

    sent: int = 0
    failed: int = 0


@contextlib.contextmanager
def _reviewing(server: RunningServer) -> Iterator[ReviewCount]:
    """Send one review after the other in a thread until the block ends."""
    counted, stop, body = ReviewCount(), threading.Event(), review(_SIZES[0])

    def send() -> None:
        while not stop.is_set():
            succeeded = False
            with contextlib.suppress(OSError):
                succeeded = server.post(body, timeout=30) == 200
            counted.sent += 1
            counted.failed += not succeeded

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join()


def _stall(server: RunningServer, count: int) -> None:
    """Open connections as fast as possible, with half a request, half a handshake, or nothing."""
    with contextlib.ExitStack() as held:
        for number in range(count):
            with contextlib.suppress(OSError):
                plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
                held.callback(plain.close)
                if number % 3 == 1:
                    plain.sendall(b"\x16\x03\x01\x02\x00\x01")
                elif number % 30 == 2:  # few, because a handshake costs this side as much
                    secure = server.tls.wrap_socket(plain, server_hostname="127.0.0.1")
                    held.callback(secure.close)
                    secure.sendall(b"POST /mutate/pods HTTP/1.1\r\nContent-Le")
        time.sleep(1)


def costs(server: RunningServer, size: int, seconds: float, turns: int) -> tuple[Cell, ...]:
    """Compare the server's CPU time of a review with ``json.loads`` of it, by turns."""
    body, number = review(size), 100
    found = []
    for _ in range(turns):
        loads = min(
            timeit(lambda: json.loads(body), number=number, timer=time.process_time)
            for _ in range(10)
        )
        found.append((served_us(server, body, seconds), loads / number * _US))
    ours, loads = (median(each) for each in zip(*found, strict=True))
    return f"{size // 1000} KB", ours, loads, median(one / other for one, other in found)


def served_us(server: RunningServer, body: bytes, seconds: float) -> float:
    """Send reviews for *seconds* over one connection; return the server's CPU time for each."""
    headers = {"Content-Type": "application/json"}
    with server.connect() as connection:
        before, done, deadline = cpu_us(server.process.pid), 0, time.monotonic() + seconds
        while time.monotonic() < deadline:
            connection.request("POST", "/mutate/pods", body, headers)
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise ConnectionError(f"a review got status {response.status}")
            done += 1
        return (cpu_us(server.process.pid) - before) / done
