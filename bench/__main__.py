"""``python -m bench [NAME ...]``: measure, print, and write JSON."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click

from bench import (
    attribution,
    footprint,
    libraries,
    nodepath,
    overview,
    placement,
    proxy,
    scheduler,
    use,
    webhook,
)
from bench.confined import NotHere
from bench.peers import run as peers
from bench.process import ProcessFailed
from bench.report import Report
from bench.result import Result, this_machine
from bench.target import Unacceptable
from simulator.node.node import NodeStuck

QUESTIONS: Mapping[str, Callable[[], Result]] = {
    attribution.NAME: attribution.run,
    nodepath.NAME: nodepath.run,
    placement.NAME: placement.run,
    peers.NAME: peers.run,
    scheduler.NAME: scheduler.run,
    footprint.NAME: footprint.run,
    overview.NAME: overview.run,
    use.NAME: use.run,
    libraries.NAME: libraries.run,
    proxy.NAME: proxy.run,
    webhook.NAME: webhook.run,
}

FAILURES = (*(NodeStuck, NotHere, ProcessFailed, Unacceptable, BrokenProcessPool, OSError),)


@click.command(
    context_settings={
        "show_default": True,
        "max_content_width": 100,
    },
    epilog="Questions: " + ", ".join(QUESTIONS),
)
@click.argument("names", nargs=-1, type=click.Choice(list(QUESTIONS)), metavar="[NAME]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="build/bench",
    help="Where a JSON file for every question is written.",
)
def main(names: tuple[str, ...], out: Path) -> None:
    """Answer the questions named, or all; exit with 1 when a goal is missed."""
    report, machine = Report(), this_machine()
    report.machine(machine)
    missed = False
    for name in names or QUESTIONS:
        began = time.monotonic()
        result = QUESTIONS[name]()
        seconds = time.monotonic() - began
        report.result(result, seconds)
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result.as_json(machine, seconds), indent=2) + "\n"
        (out / f"{name}.json").write_text(text, encoding="utf-8")
        missed = missed or any(not goal.met for goal in result.goals)
    if missed:
        sys.exit(1)


def entry() -> None:
    """Run the command line; an error is one line, not a stack trace."""
    try:
        main()
    except FAILURES as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    entry()
