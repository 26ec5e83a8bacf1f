"""``python -m bench [NAME ...]``: measure, print, and write JSON."""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click

from bench import footprint, nodepath, overview, proxy, scheduler, use, webhook
from bench.process import ProcessFailed
from bench.result import Result, publish
from simulator.node.node import NodeStuck

QUESTIONS: Mapping[str, Callable[[], Result]] = {
    nodepath.NAME: nodepath.run,
    scheduler.NAME: scheduler.run,
    footprint.NAME: footprint.run,
    overview.NAME: overview.run,
    use.NAME: use.run,
    proxy.NAME: proxy.run,
    webhook.NAME: webhook.run,
}

FAILURES = (NodeStuck, ProcessFailed, BrokenProcessPool, OSError)


@click.command(
    context_settings={"show_default": True, "max_content_width": 100},
    epilog="Questions: " + ", ".join(QUESTIONS),
)
@click.argument("names", nargs=-1, type=click.Choice(list(QUESTIONS)), metavar="[NAME]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="build/bench",
    help="Folder for a JSON file of each question.",
)
def main(names: tuple[str, ...], out: Path) -> None:
    """Measure the named questions, or all; exit with 1 if a result is wrong."""
    wrong = False
    for name in names or QUESTIONS:
        began = time.monotonic()
        result = QUESTIONS[name]()
        publish(result, time.monotonic() - began, out)
        wrong = wrong or bool(result.wrong)
    sys.exit(wrong)


def entry() -> None:
    """Run the command line; an error is one line, not a stack trace."""
    try:
        main()
    except FAILURES as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    entry()
