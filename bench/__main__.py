"""``python -m bench [NAME ...]``: measure, print, and write one JSON file a question."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import click

from bench import attribution, nodepath
from bench.report import Report
from bench.result import Result, this_machine

QUESTIONS: dict[str, Callable[[], Result]] = {
    "attribution": attribution.run,
    "nodepath": nodepath.run,
}


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1, type=click.Choice(list(QUESTIONS)))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/bench"),
    envvar="GPU_TURNSTILE_BENCH_OUT",
    show_envvar=True,
    help="Where the JSON files go.",
)
def main(names: tuple[str, ...], out: Path) -> None:
    """Answer the questions named, or all. A goal that is missed is said, and is no error."""
    machine, report = this_machine(), Report()
    report.machine(machine)
    out.mkdir(parents=True, exist_ok=True)
    for name in names or tuple(QUESTIONS):
        began = time.monotonic()
        result = QUESTIONS[name]()
        seconds = time.monotonic() - began
        report.result(result, seconds)
        text = json.dumps(result.as_json(machine, seconds), indent=1)
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
