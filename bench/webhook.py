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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from timeit import timeit

from bench import fuzz, wrk
from bench.cpu import per_review_us
from bench.opponents import BARE, OURS, SERVED_BY, missing
from bench.result import Cell, Goal, Result, Table
from bench.reviews import NAMES, review
from bench.servers import (
    Running,
    make_certificates,
    raise_file_limit,
    resident_mib,
    serving,
)
from bench.siege import besiege
from contract.stamps import Stamper
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import decode_review, encode_review

NAME = "webhook"

_SIZES = (5_000, 50_000)
_US = 1e6


@dataclass(frozen=True, slots=True)
class Turn:
    """One way to load the servers, and what each measured, turn by turn."""

    size: int
    workers: int
    keep_alive: bool
    measured: dict[str, list[wrk.Measured]]

    def rate(self, server: str) -> float:
        """Return the median of answers a second."""
        return median(each.rate for each in self.measured[server])

    def p99_ms(self, server: str) -> float:
        """Return the median of the 99th percentiles."""
        return median(each.p99_ms for each in self.measured[server])

    def rate_ratio(self, server: str) -> float:
        """Return another's rate over the webhook's: the median of turns."""
        return median(
            other.rate / ours.rate
            for ours, other in zip(self.measured[OURS], self.measured[server], strict=True)
        )

    def p99_ratio(self, server: str) -> float:
        """Return the webhook's 99th percentile over another's: the median of turns."""
        return median(
            ours.p99_ms / other.p99_ms
            for ours, other in zip(self.measured[OURS], self.measured[server], strict=True)
        )


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured; the defaults are those of ``make bench``.

    Attributes:
        seconds: of each turn, whole ones.
        turns: of each server.
        warm_ups: turns before, which do not count.
        sizes: of the review, in bytes.
        workers: processes of each server.
        connections: of the load generator.
        siege: connections, bodies of 8 MiB and damaged requests of the siege.
        inputs: of the fuzzer.
    """

    seconds: int = 2
    turns: int = 3
    warm_ups: int = 1
    sizes: Sequence[int] = _SIZES
    workers: Sequence[int] = (1, 2)
    connections: int = 8
    siege: tuple[int, int, int] = (10_000, 40, 5_000)
    inputs: int = 1_000_000


def run(effort: Effort | None = None) -> Result:
    """Measure.

    Raises:
        ServerFailed: a server did not come up.
        WrkFailed: the load generator came to no result.
        FuzzFailed: an input was answered as none may be.
    """
    effort = effort or Effort()
    raise_file_limit()
    alone = {size: alone_us(size) for size in _SIZES}
    small, loads = alone[_SIZES[0]].review, alone[_SIZES[0]].loads
    with tempfile.TemporaryDirectory(prefix="gpu-turnstile-bench-") as made:
        folder = Path(made)
        make_certificates(folder)
        cpu = _cpu(folder, effort)
        turns = _load(folder, effort) if wrk.is_installed() else []
        with serving(OURS, folder, workers=2) as server:
            ready_s = server.ready_s
            body, context = review(_SIZES[0]), server.tls()
            for _ in range(200):
                server.post(body, context)
            resident = max(resident_mib(each) for each in server.workers())
            connections, bodies, inputs = effort.siege
            attacks = besiege(server, connections=connections, bodies=bodies, inputs=inputs)
    fuzzed = fuzz.fuzz(effort.inputs, seed=1, processes=2) if effort.inputs else None
    goals = [
        Goal("review function alone over json.loads of the same 5 KB", 3.5, small / loads),
        Goal("start to ready, seconds", 2, ready_s),
        Goal("resident memory of a worker, MiB", 60, resident),
        Goal("honest reviews that failed under siege", 0, sum(each.failed for each in attacks)),
        Goal("workers lost under siege", 0, sum(each.lost_workers for each in attacks)),
        Goal("answers with status 500", 0, sum(each.internal_errors for each in attacks)),
    ]
    for turn in turns:
        if turn.size == _SIZES[0]:
            goals += _goals(turn)
    first = cpu[_SIZES[0]]
    goals += [
        Goal(
            "time on the processor of a 5 KB review over json.loads of it",
            14,
            min(first[OURS]) / loads,
        ),
        Goal(
            f"time on the processor of a 5 KB review over that of {BARE}",
            1,
            median(ours / bare for ours, bare in zip(first[OURS], first[BARE], strict=True)),
        ),
    ]
    tables = [
        _costs(cpu),
        _rates(turns, effort)
        if turns
        else Table(
            "Reviews a second: NOT MEASURED",
            (),
            (),
            ("wrk is not installed: apt-get install wrk, then again.",),
        ),
        Table(
            "The review function alone, from bytes to bytes, microseconds",
            ("size", "review", "json.loads", "ratio"),
            [
                (f"{size // 1000} KB", each.review, each.loads, each.review / each.loads)
                for size, each in alone.items()
            ],
        ),
        Table(
            "Under siege, 2 workers; meanwhile one client reviews over new connections",
            ("attack", "reviews", "failed", "worst ms", "workers lost", "500s", "grown MiB"),
            [
                (
                    *(each.name, each.reviews, each.failed, each.worst_ms),
                    *(each.lost_workers, each.internal_errors, each.grown_mib),
                )
                for each in attacks
            ],
        ),
    ]
    if fuzzed is not None:
        goals.append(
            Goal("memory after all fuzzed inputs over that after a tenth", 1.1, _grown(fuzzed))
        )
        tables.append(_fuzzed(fuzzed))
    return Result(NAME, tables, goals, {"ready_s": ready_s, "resident_mib": resident})


@dataclass(frozen=True, slots=True)
class Alone:
    """Microseconds on the processor, of the review function and of reading its JSON."""

    review: float
    loads: float


def alone_us(size: int, *, number: int = 100) -> Alone:
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


def _servers() -> list[str]:
    return [each for each in SERVED_BY if each not in missing()]


def _cpu(folder: Path, effort: Effort) -> dict[int, dict[str, list[float]]]:
    """Measure the time on the processor of a review: by size and server, turn by turn."""
    found: dict[int, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as running:
        servers = {
            name: running.enter_context(serving(name, folder, workers=1)) for name in _servers()
        }
        for size in _SIZES:
            body = review(size)
            found[size] = {name: [] for name in servers}
            for _ in range(effort.turns):
                for name, server in servers.items():
                    cost = per_review_us(
                        server, body, connections=effort.connections, seconds=effort.seconds
                    )
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
        (
            "A bare view answers 'allowed' without looking. Medians of turns.",
            *(f"{name}: NOT MEASURED, {reason}." for name, reason in missing().items()),
        ),
    )


def _load(folder: Path, effort: Effort) -> list[Turn]:
    bodies = {}
    for size in effort.sizes:
        bodies[size] = folder / f"review-{size}.json"
        bodies[size].write_bytes(review(size))
    turns = []
    for workers in effort.workers:
        with contextlib.ExitStack() as running:
            servers = {
                name: running.enter_context(serving(name, folder, workers=workers))
                for name in _servers()
            }
            for size in effort.sizes:
                # With connections made anew it is handshakes that are measured, of any size.
                for keep_alive in (True, False) if size == effort.sizes[0] else (True,):
                    measured = _take_turns(servers, bodies[size], effort, keep_alive=keep_alive)
                    turns.append(Turn(size, workers, keep_alive, measured))
    return turns


def _take_turns(
    servers: dict[str, Running], body: Path, effort: Effort, *, keep_alive: bool
) -> dict[str, list[wrk.Measured]]:
    measured: dict[str, list[wrk.Measured]] = {name: [] for name in servers}
    for turn in range(-effort.warm_ups, effort.turns):
        for name, server in servers.items():
            found = wrk.measure(
                server.url,
                body,
                connections=effort.connections,
                seconds=effort.seconds if turn >= 0 else 1,
                keep_alive=keep_alive,
            )
            if turn >= 0:  # the first only warms up
                measured[name].append(found)
    return measured


def _rates(turns: Sequence[Turn], effort: Effort) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for turn in turns:
        rows += [
            (
                f"{turn.size // 1000} KB",
                turn.workers,
                "kept" if turn.keep_alive else "new",
                server,
                turn.rate(server),
                turn.p99_ms(server),
                1 / turn.rate_ratio(server),
                turn.p99_ratio(server),
                sum(each.failed for each in turn.measured[server]),
            )
            for server in turn.measured
        ]
    return Table(
        f"Reviews a second over TLS, wrk with {effort.connections} connections",
        (
            *("size", "workers", "connections", "server", "a second", "p99 ms"),
            *("ours/its rate", "ours/its p99", "failed"),
        ),
        rows,
        (
            *(f"{name}: {served_by}." for name, served_by in SERVED_BY.items()),
            "p99 and rates are medians of turns, ratios medians of the ratios of each turn.",
            "The load generator runs on the same cores as the servers.",
        ),
    )


def _goals(turn: Turn) -> list[Goal]:
    connections = "kept" if turn.keep_alive else "new"
    how = f"5 KB, {turn.workers} workers, {connections} connections"
    return [
        Goal(f"{BARE} over ours, reviews a second, {how}", 1 / 0.75, turn.rate_ratio(BARE)),
        Goal(f"ours over {BARE}, 99th percentile, {how}", 1.5, turn.p99_ratio(BARE)),
    ]


def _grown(outcome: fuzz.Outcome) -> float:
    return outcome.after_mib / max(outcome.before_mib, 1.0)


def _fuzzed(outcome: fuzz.Outcome) -> Table:
    return Table(
        f"{outcome.inputs} hostile inputs through the whole request path",
        ("status", "answers"),
        list(outcome.statuses.items()),
        (f"Resident: {outcome.before_mib:.0f} MiB, at the end {outcome.after_mib:.0f} MiB.",),
    )
