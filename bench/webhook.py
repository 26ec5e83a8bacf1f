"""The cost of a review and the strength of the webhook, beside stock servers in one run.

All servers speak TLS and take turns under one client, so that a noisy machine is equally
noisy to all; ratios are medians of turns. The review function alone, without HTTP and TLS,
is timed in this process. Then the webhook is besieged, and its request path is fed hostile
bytes.
"""

import contextlib
import json
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from timeit import timeit

from bench import fuzz
from bench.cpu import per_review_us
from bench.opponents import OURS, SERVED_BY, command
from bench.process import resident_mib
from bench.result import Cell, Result, Table, wrong
from bench.reviews import NAMES, review
from bench.servers import make_certificates, raise_file_limit, serving
from bench.siege import besiege
from contract.stamps import Stamper
from simulator.cluster import free_port
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import decode_review, encode_review

NAME = "webhook"

_SIZES = (5_000, 50_000)
_US = 1e6


def run(
    *,
    seconds: float = 2.0,
    turns: int = 3,
    number: int = 100,
    siege: tuple[int, int, int] = (10_000, 40, 5_000),
    inputs: int = 1_000_000,
) -> Result:
    """Measure.

    Args:
        seconds: of each turn.
        turns: of each server.
        number: of reviews in each of the short turns of the function alone.
        siege: connections, bodies of 8 MiB and damaged requests of the siege.
        inputs: of the fuzzer.

    Raises:
        ProcessFailed: a server did not come up.
        Unacceptable: an input of the fuzzer was answered as none may be.
    """
    raise_file_limit()
    alone = {size: alone_us(size, number) for size in _SIZES}
    with tempfile.TemporaryDirectory(prefix="gpu-turnstile-bench-") as made:
        folder = Path(made)
        make_certificates(folder)
        cpu = _cpu(folder, seconds, turns)
        port = free_port()
        with serving(command(OURS, folder, port, 2), folder, port) as server:
            ready_s, body = server.ready_s, review(_SIZES[0])
            for _ in range(200):
                server.post(body)
            resident = max(resident_mib(each) for each in server.workers())
            attacks = besiege(server, *siege)
    fuzzed = fuzz.fuzz(inputs, seed=1, processes=2)
    tables = (
        _costs(cpu, alone),
        Table(
            "The review function alone, from bytes to bytes, microseconds",
            ("size", "review", "json.loads", "ratio"),
            [
                (f"{size // 1000} KB", each.review, each.loads, each.review / each.loads)
                for size, each in alone.items()
            ],
        ),
        Table(
            "The process: from start to ready, seconds; resident memory of a worker, MiB",
            ("ready", "resident"),
            ((ready_s, resident),),
        ),
        Table(
            "Under siege, 2 workers; meanwhile one client reviews over new connections",
            ("attack", "reviews", "failed", "worst ms", "workers lost", "500s", "grown MiB"),
            [astuple(each) for each in attacks],
        ),
        Table(
            f"{fuzzed.inputs} hostile inputs through the whole request path",
            ("status", "answers"),
            sorted(fuzzed.statuses.items()),
            (f"Resident: {fuzzed.before_mib:.0f} MiB, at the end {fuzzed.after_mib:.0f} MiB.",),
        ),
    )
    strength = {
        "honest reviews that failed under siege": sum(each.failed for each in attacks),
        "workers lost under siege": sum(each.lost_workers for each in attacks),
        "answers with status 500": sum(each.internal_errors for each in attacks),
    }
    return Result(NAME, tables, wrong(strength))


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
            served = serving(command(name, folder, port, 1), folder, port)
            servers[name] = running.enter_context(served)
        for size in _SIZES:
            body = review(size)
            found[size] = {name: [] for name in servers}
            for _ in range(turns):
                for name, server in servers.items():
                    cost = per_review_us(server, body, connections=8, seconds=seconds)
                    found[size][name].append(cost)
    return found


def _costs(cpu: dict[int, dict[str, list[float]]], alone: dict[int, Alone]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in cpu[_SIZES[0]]:
        cells: list[Cell] = [name]
        for size in _SIZES:
            ours, its = cpu[size][OURS], cpu[size][name]
            ratios = [one / other for one, other in zip(ours, its, strict=True)]
            cells += [median(its), median(ratios), median(its) / alone[size].loads]
        rows.append((*cells, SERVED_BY[name]))
    titles = [f"{size // 1000} KB" for size in _SIZES]
    columns = [cell for each in titles for cell in (each, "ours/its", "its/json.loads")]
    return Table(
        "Time on the processor of one review, microseconds, 1 worker, kept connections",
        ("server", *columns, "served by"),
        rows,
        ("A bare view answers 'allowed' without looking. Medians of turns.",),
    )
