"""``make test-storm``: the tests beside other work, until they have passed several times running.

A loaded machine delays each thread and each process for as long as it likes. A test that fails only
there has a race. The load is made of processes that compute, and of one that starts processes.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
_COMPUTE = "while True: sum(range(100_000))"
_START_PROCESSES = "import subprocess\nwhile True: subprocess.run(['true'], check=True)"


@contextmanager
def load_of(processes: int) -> Iterator[None]:
    """Keep *processes* processes runnable, whatever happens to this one's code."""
    programs = [_START_PROCESSES, *itertools.repeat(_COMPUTE, processes - 1)][:processes]
    with ExitStack() as running:
        for each in programs:
            process = running.enter_context(subprocess.Popen([sys.executable, "-c", each]))
            running.callback(process.kill)
        yield


@click.command(context_settings={"show_default": True, "ignore_unknown_options": True})
@click.option("--load", default=20, help="Processes that compute beside the tests.")
@click.option("--runs", default=10, help="Runs in a row that must pass.")
@click.argument("pytest_options", nargs=-1, type=click.UNPROCESSED)
def main(load: int, runs: int, pytest_options: Sequence[str]) -> None:
    """Run the tests beside a load until RUNS runs have passed; exit with 1 at the first failure.

    PYTEST_OPTIONS are pytest's, such as a folder of tests.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=auto", "--dist=worksteal"]
    for number in range(1, runs + 1):
        began = time.monotonic()
        with load_of(load):
            result = subprocess.run([*command, *pytest_options], cwd=ROOT, check=False)
            average = os.getloadavg()[0]
        outcome = "failed, see above" if result.returncode else "passed"
        click.echo(
            f"run {number} of {runs} beside {load} processes: {outcome} "
            f"after {time.monotonic() - began:.0f} s, load average {average:.0f}"
        )
        if result.returncode:
            sys.exit(1)


if __name__ == "__main__":
    main()
