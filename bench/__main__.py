"""``python -m bench [NAME ...]``: measure, print, and write JSON."""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click

from bench import nodepath, scheduler, start, webhook
from bench.process import ProcessFailed
from bench.result import NotPossible, Result, publish
from common.apiserver.errors import REQUEST_ERRORS, CredentialsError

QUESTIONS: Mapping[str, Callable[..., Result]] = {
    nodepath.NAME: nodepath.run,
    scheduler.NAME: scheduler.run,
    webhook.NAME: webhook.run,
    start.NAME: start.run,
}

FAILURES = (
    *(NotPossible, ProcessFailed, BrokenProcessPool, CredentialsError, OSError),
    *REQUEST_ERRORS,
)


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
@click.option("--pods", default=36, help="start: pods in each burst.")
@click.option("--image", default=start.IMAGE, help="start: image that runs until it is ended.")
def main(names: tuple[str, ...], out: Path, **options: object) -> None:
    """Measure the named questions, or all that are possible; exit with 1 if a result is wrong."""
    wrong = False
    for name in names or QUESTIONS:
        began = time.monotonic()
        try:
            result = QUESTIONS[name](**(options if name == start.NAME else {}))
        except NotPossible as error:
            if names:
                raise
            click.echo(f"{name}: skipped: {error}")
            continue
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
