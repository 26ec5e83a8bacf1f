"""The cost of a review beside a stock server's, and honest reviews beside clients that stall.

Both servers speak TLS and take turns under one client, so that a noisy machine is equally noisy to
both; ratios are medians of turns. The review function alone, without HTTP and TLS, is timed in this
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
        seconds: of each turn.
        turns: of each server.
        number: of reviews in each of the short turns of the function alone.
        stalled: how many connections are opened that never finish a request.

    Raises:
        ProcessFailed: a server did not come up.
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
            with _honest(server) as honest:
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
            f"{stalled} connections that stall; meanwhile one client reviews over new connections",
            ("reviews", "failed", "resident MiB", "grown MiB"),
            [(honest.sent, honest.failed, resident, grown)],
        ),
    )
    strength = {
        "honest reviews that failed beside clients that stall": honest.failed,
        "workers lost beside them": int(not same),
    }
    return Result(NAME, tables, wrong(strength))


@dataclass(slots=True)
class Honest:
    """Reviews that one client has sent, and those of them that were not answered with 200."""

    sent: int = 0
    failed: int = 0


@contextlib.contextmanager
def _honest(server: RunningServer) -> Iterator[Honest]:
    """Send one review after the other, meanwhile."""
    counted, stop, body = Honest(), threading.Event(), review(_SIZES[0])

    def send() -> None:
        while not stop.is_set():
            right = False
            with contextlib.suppress(OSError):
                right = server.post(body, timeout=30) == 200
            counted.sent += 1
            counted.failed += not right

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join()


def _stall(server: RunningServer, count: int) -> None:
    """Open connections as fast as they are taken: half a request, half a handshake, or nothing."""
    with contextlib.ExitStack() as held:
        for number in range(count):
            with contextlib.suppress(OSError):
                plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
                held.callback(plain.close)
                if number % 3 == 1:
                    plain.sendall(b"\x16\x03\x01\x02\x00\x01")
                elif number % 30 == 2:  # handshakes cost this side as much as the other
                    secure = server.tls.wrap_socket(plain, server_hostname="127.0.0.1")
                    held.callback(secure.close)
                    secure.sendall(b"POST /mutate/pods HTTP/1.1\r\nContent-Le")
        time.sleep(1)


@dataclass(frozen=True, slots=True)
class Alone:
    """Microseconds on the processor, of the review function and of reading its JSON."""

    review: float
    loads: float


def alone_us(size: int, number: int) -> Alone:
    """Time the review function on one review, from bytes to bytes, beside ``json.loads`` of it.

    Each is the best of many short turns on the processor: both wait for nothing, and a machine
    that others slow down is equally slow to both.
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
    """Measure the time on the processor of a review: by size and server, turn by turn."""
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
        "Time on the processor of one review, microseconds, 1 worker, kept connections",
        ("server", *(cell for each in titles for cell in (each, "ours/its")), "served by"),
        rows,
        ("A bare view answers 'allowed' without looking. Medians of turns.",),
    )
