"""Hostile bytes through the whole request path: ``python -m bench.fuzz --inputs N``.

Framing, HTTP parsing, routing, review and answer, without a socket. The bytes are those of the
examples, damaged at random. An input that ends in another status than a client's own mistake, or
raises, ends the run.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from random import Random

import click

from bench.process import resident_mib
from bench.reviews import requests
from bench.target import Target

_LONGEST = 8192


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of many inputs.

    Attributes:
        inputs: how many there were.
        statuses: answers by HTTP status; an input may get several, or none.
        before_mib, after_mib: resident memory after a tenth of them, and after all.
    """

    inputs: int
    statuses: Counter[str]
    before_mib: float
    after_mib: float


def fuzz(inputs: int, *, seed: int, processes: int) -> Outcome:
    """Try so many inputs, shared out over processes; memory is that of the one that grew most.

    Raises:
        Unacceptable: one was answered as none may be.
        BrokenProcessPool: a process died of one.
    """
    each = -(-inputs // processes)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(try_all, [each] * processes, range(seed, seed + processes)))
    worst = max(outcomes, key=lambda outcome: outcome.after_mib - outcome.before_mib)
    statuses = sum((outcome.statuses for outcome in outcomes), Counter[str]())
    return Outcome(each * processes, statuses, worst.before_mib, worst.after_mib)


def try_all(inputs: int, seed: int) -> Outcome:
    """Try so many inputs in this process."""
    logging.getLogger("webhook").handlers[:] = [logging.NullHandler()]
    logging.getLogger("webhook").propagate = False
    source, mib = damaged(seed), []
    with closing(Target()) as target:
        for count in (inputs // 10, inputs - inputs // 10):
            for data in islice(source, count):
                target.try_one(data)
            mib.append(resident_mib(os.getpid()))
        return Outcome(inputs, target.statuses, *mib)


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
    click.echo(try_all(inputs, seed))


if __name__ == "__main__":
    main()
