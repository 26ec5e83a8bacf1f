"""Cost of a review compared with a stock server, and normal reviews while other clients stall.

Both servers use TLS and take turns with one client, so other load on the machine affects both;
ratios are medians of turns. The review function alone, without HTTP and TLS, is timed in this
process.
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

from bench.cpu import per_review_us
from bench.opponents import OURS, SERVED_BY, command
from bench.process import resident_mib
from bench.result import Cell, Result, Table, wrong
from bench.reviews import NAMES, review
from bench.servers import RunningServer, make_certificates, raise_file_limit, serving
from contract.stamps import Stamper
from simulator.cluster import free_port
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import decode_review, encode_review

NAME = "webhook"

_SIZES = (5_000, 50_000)
_US = 1e6


def run(*, seconds: float = 2.0, turns: int = 3, number: int = 100, stalled: int = 6_000) -> Result:
    """Measure.

    Args:
        seconds: length of each turn.
        turns: number of turns of each server.
        number: number of reviews in each short turn of the function alone.
        stalled: number of connections that never finish a request.

    Raises:
        ProcessFailed: a server did not become ready.
    """
    raise_file_limit()
    alone = {size: alone_us(size, number) for size in _SIZES}
    with tempfile.TemporaryDirectory(prefix="gpu-turnstile-bench-") as made:
        folder = Path(made)
        make_certificates(folder)
        cpu = _cpu(folder, seconds, turns)
        port = free_port()
        with serving(command(OURS, folder, port), folder, port) as server:
            (worker,) = server.workers()
            resident = resident_mib(worker)
            with _reviewing(server) as reviews:
                _stall(server, stalled)
            grown = resident_mib(worker) - resident
            same = server.workers() == (worker,)
    tables = (
        _costs(cpu),
        Table(
            "The review function alone, from bytes to bytes, microseconds",
            ("size", "review", "json.loads", "ratio"),
            [
                (f"{size // 1000} KB", each.review, each.loads, each.review / each.loads)
                for size, each in alone.items()
            ],
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


@dataclass(frozen=True, slots=True)
class Alone:
    """CPU microseconds of the review function, and of decoding its JSON."""

    review: float
    loads: float


def alone_us(size: int, number: int) -> Alone:
    """Time the review function on one review, from bytes to bytes, and ``json.loads`` of it.

    Each result is the best CPU time of many short turns. The two take turns, so other load on the
    machine affects both.
    """
    body = review(size)
    stamper = Stamper(clock=time.time_ns, writer="bench")

    def once() -> None:
        decoded = decode_review(body)
        encode_review(decoded, mutate_pod(decoded, names=NAMES, stamp=stamper.next))

    turns = [
        [
            timeit(each, number=number, timer=time.process_time)
            for each in (once, lambda: json.loads(body))
        ]
        for _ in range(50)
    ]
    whole, loads = (min(each) / number * _US for each in zip(*turns, strict=True))
    return Alone(whole, loads)


def _cpu(folder: Path, seconds: float, turns: int) -> dict[int, dict[str, list[float]]]:
    """Measure the CPU time of a review, by size and server, for each turn."""
    found: dict[int, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as running:
        servers = {}
        for name in SERVED_BY:
            port = free_port()
            served = serving(command(name, folder, port), folder, port)
            servers[name] = running.enter_context(served)
        for size in _SIZES:
            body = review(size)
            found[size] = {name: [] for name in servers}
            for _ in range(turns):
                for name, server in servers.items():
                    cost = per_review_us(server, body, connections=8, seconds=seconds)
                    found[size][name].append(cost)
    return found


def _costs(cpu: dict[int, dict[str, list[float]]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in cpu[_SIZES[0]]:
        cells: list[Cell] = [name]
        for size in _SIZES:
            ours, its = cpu[size][OURS], cpu[size][name]
            ratios = [one / other for one, other in zip(ours, its, strict=True)]
            cells += [median(its), median(ratios)]
        rows.append((*cells, SERVED_BY[name]))
    titles = [f"{size // 1000} KB" for size in _SIZES]
    return Table(
        "CPU time of one review, microseconds, 1 worker, kept connections",
        ("server", *(cell for each in titles for cell in (each, "ours/its")), "served by"),
        rows,
        ("A bare view allows every review without reading it. Medians of turns.",),
    )
