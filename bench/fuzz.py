"""Hostile bytes through the whole request path: ``python -m bench.fuzz --inputs N``.

Framing, HTTP parsing, routing, review and answer, in one process without a socket. atheris
guides the bytes by what code they reach; without it the bytes are those of the examples,
damaged at random. An input that ends in another status than a client's own mistake, or
raises, ends the run.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from bench.reviews import requests
from bench.servers import resident_mib

if TYPE_CHECKING:
    from bench.target import Target

_RESULT = "RESULT "
_LONGEST = 8192


class FuzzFailed(Exception):
    """An input was answered as none may be; the message says how."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of many inputs.

    Attributes:
        inputs: how many there were.
        statuses: answers by HTTP status; an input may get several, or none.
        before_mib, after_mib: resident memory after a tenth of them, and after all.
    """

    inputs: int
    statuses: dict[str, int]
    before_mib: float
    after_mib: float


def fuzz(inputs: int, *, seed: int, processes: int) -> Outcome:
    """Try so many inputs, shared out over processes.

    Raises:
        FuzzFailed: one was answered as none may be, or a process died of it.
    """
    each = -(-inputs // processes)
    with ThreadPoolExecutor(processes) as pool:
        outcomes = list(pool.map(lambda number: _in_process(each, seed + number), range(processes)))
    statuses: Counter[str] = Counter()
    for outcome in outcomes:
        statuses.update(outcome.statuses)
    worst = max(outcomes, key=lambda outcome: outcome.after_mib - outcome.before_mib)
    return Outcome(
        sum(outcome.inputs for outcome in outcomes),
        dict(sorted(statuses.items())),
        worst.before_mib,
        worst.after_mib,
    )


def _in_process(inputs: int, seed: int) -> Outcome:
    command = [sys.executable, "-m", "bench.fuzz", "--inputs", str(inputs), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- ours
    for line in done.stdout.splitlines():
        if line.startswith(_RESULT):
            return Outcome(**json.loads(line.removeprefix(_RESULT)))
    raise FuzzFailed(f"status {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")


def damaged(seed: int) -> Iterator[bytes]:
    """Damage the examples, endlessly and repeatably."""
    random = Random(seed)  # noqa: S311 -- is to be repeatable
    examples = requests()
    words = (b"\r\n", b"0", b'"', b"{", b"null", b"-1", b"1e9", b"\xff", b"chunked", b"\\ud800")
    while True:
        data = bytearray(random.choice(examples))
        for _ in range(random.randint(1, 6)):
            at = random.randrange(len(data) + 1)
            match random.randrange(5):
                case 0:
                    del data[at : at + random.randint(1, 40)]
                case 1:
                    data[at:at] = random.choice(words)
                case 2:
                    data[at : at + 1] = random.randbytes(1)
                case 3:
                    data[at:at] = data[: random.randint(1, 60)]
                case _:
                    data[at : at + random.randint(1, 8)] = random.choice(words)
        yield bytes(data[:_LONGEST])


@click.command()
@click.option("--inputs", type=click.IntRange(10), default=1_000_000, help="How many.")
@click.option("--seed", default=1, help="Of everything random.")
def main(inputs: int, seed: int) -> None:
    """Try inputs in this process and print what became of them."""
    logging.getLogger("webhook").handlers[:] = [logging.NullHandler()]
    logging.getLogger("webhook").propagate = False
    with tempfile.TemporaryDirectory(prefix="gpu-turnstile-fuzz-") as made:
        folder = Path(made)
        if find_spec("atheris") is None:
            counted = _counting(import_module("bench.target").Target(), inputs)
            for data in damaged(seed):
                counted(data)
        else:
            _guided(folder, inputs, seed)


def _counting(target: "Target", inputs: int) -> Callable[[bytes], None]:
    tried, before = 0, 0.0

    def one(data: bytes) -> None:
        nonlocal tried, before
        target.try_one(data)
        tried += 1
        if tried == inputs // 10:
            before = resident_mib(os.getpid())
        if tried == inputs:
            after = resident_mib(os.getpid())
            result = {"inputs": tried, "statuses": dict(target.statuses)}
            result |= {"before_mib": before, "after_mib": after}
            click.echo(_RESULT + json.dumps(result))
            sys.stdout.flush()
            os._exit(0)  # libFuzzer knows no other end from inside

    return one


def _guided(folder: Path, inputs: int, seed: int) -> None:
    """Let atheris choose the inputs, from the examples on."""
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["webhook", "contract"], enable_loader_override=False):
        target = import_module("bench.target").Target()
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, example in enumerate(requests()):
        (corpus / str(number)).write_bytes(example)
    options = [f"-seed={seed}", f"-max_len={_LONGEST}", "-rss_limit_mb=2048", "-len_control=0"]
    options.append(f"-artifact_prefix={folder}/")
    one = _counting(target, inputs)
    atheris.Setup([sys.argv[0], *options, "-verbosity=0", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
