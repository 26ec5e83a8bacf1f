"""``python -m bench.gpu``: check the programs on this machine's GPU, and print a table."""

import ctypes
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import click

from agent.cards.inventory import Discovery
from agent.cards.source import discover, none_served
from agent.errors import SettingsError, Unavailable
from agent.settings import HAMI_LIBRARY_DIR
from bench.gpu import checks, mps
from bench.gpu.confined import NotHere, ProgramFailed
from bench.gpu.table import CheckOutcome, Row, render, skipped

_CONTROL = Path("/dev/nvidiactl")
_LIBRARY = HAMI_LIBRARY_DIR / "libvgpu.so"
_ALL = (
    "discovery, topology and inventory",
    "health",
    "use against a load of known size",
    "HAMi-core's memory limit",
    "MPS: limits of unequal shares",
)


@click.command(context_settings={"show_default": True})
@click.option(
    "--hami-library",
    type=click.Path(path_type=Path),
    default=_LIBRARY,
    help="HAMi-core's library.",
)
def main(hami_library: Path) -> None:
    """Check discovery, health, use and limits on a real GPU; for docs/benchmarks.md."""
    if not _CONTROL.exists():
        reason = f"no GPU here: {_CONTROL} does not exist"
        machine, rows = platform.node(), [skipped(each, reason) for each in _ALL]
    else:
        machine, rows = _check(hami_library)
    click.echo(render(machine, rows))
    sys.exit(any(each.outcome is CheckOutcome.WRONG for each in rows))


def _check(hami_library: Path) -> tuple[str, list[Row]]:
    try:
        found = discover(None)
    except SettingsError as error:
        wrong = Row(_ALL[0], "the driver responds", str(error), CheckOutcome.WRONG)
        return platform.node(), [wrong, *(skipped(each, "no cards") for each in _ALL[1:])]
    rows = _try(_ALL[0], lambda: checks.list_cards(found))
    if not found.inventory.cards:
        return _machine(found), [*rows, *(skipped(e, none_served(found)) for e in _ALL[1:])]
    cards = found.inventory.cards
    rows += _try(_ALL[1], lambda: checks.health(cards))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _machine(found), [*rows, *(skipped(each, str(error)) for each in _ALL[2:])]
    rows += _try(_ALL[2], lambda: checks.use(cards[0]))
    if hami_library.exists():
        rows += _try(_ALL[3], lambda: checks.hami(cards[0], hami_library))
    else:
        rows.append(skipped(_ALL[3], f"{hami_library} does not exist (--hami-library)"))
    rows += _try(_ALL[4], lambda: mps.check(cards[0]))
    return _machine(found), rows


def _try(name: str, check: Callable[[], list[Row]]) -> list[Row]:
    """Run a check; if it is not possible or fails, return a row with the reason."""
    try:
        return check()
    except NotHere as error:
        return [skipped(name, str(error))]
    except (checks.LoadFailed, ProgramFailed, Unavailable) as error:
        return [Row(name, "", str(error), CheckOutcome.WRONG)]


def _machine(found: Discovery) -> str:
    models = sorted({each.model for each in found.inventory.cards}) or ["no card"]
    return f"{len(found.inventory.cards)} x {', '.join(models)}, driver {found.driver}"


if __name__ == "__main__":
    main()
