"""``python -m agent``: the node agent's command line."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from common.deferred import defer

# Saves 19 of the 74 MiB of an idle agent: the API's models, OAuth, streams, leader election.
defer("kubernetes", "kubernetes.config")

import click

from agent.app.agent import Agent
from agent.cards.cards_file import dump_discovery
from agent.cards.source import discover, none_served
from agent.errors import SettingsError
from agent.host.process import limit_arenas, raise_limit
from agent.settings import MigMode, Settings, parse_cards
from common.commandline import flag, options_of, read_by
from common.logs import configure
from contract.errors import ContractError

_PREFIX = "GPU_TURNSTILE"


@contextmanager
def _one_line() -> Iterator[None]:
    """Exit with status 2 and a one-line message if a setting cannot be used."""
    try:
        yield
    except (SettingsError, ContractError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


class _OneLineGroup(click.Group):
    """A command whose options report invalid values in one line as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; exit as :func:`_one_line` does."""
        with _one_line():
            return super().parse_args(ctx, args)


@click.group(
    cls=_OneLineGroup,
    invoke_without_command=True,
    context_settings={"show_default": True, "max_content_width": 100},
)
@options_of(Settings, _PREFIX)
@flag(
    _PREFIX,
    "log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="The lowest level that is logged, to standard error.",
)
@click.pass_context
def main(context: click.Context, /, *, log_level: str, **flags: Any) -> None:
    """Serve this node's GPUs to its kubelet, and find the container that each call is for."""
    context.obj = partial(discover, mig=flags["mig"] is MigMode.SHARES), flags["cards"]
    if context.invoked_subcommand is not None:
        return
    if flags["node_name"] is None:
        param = next(each for each in context.command.params if each.name == "node_name")
        raise click.MissingParameter(ctx=context, param=param)
    configure(log_level)
    limit_arenas()
    raise_limit()
    # Every thread started from here on inherits the block, so only the wait below gets the signals.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with _one_line():
        agent = Agent(Settings(**flags))
        agent.start()
    signal.sigwait(signals)
    agent.stop()


@main.group("cards")
def cards_group() -> None:
    """Show this node's cards, or write them to a cards file."""


@cards_group.command()
@click.option(
    "-o",
    "--output",
    envvar=f"{_PREFIX}_CARDS_DUMP_OUTPUT",
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: standard output]",
)
@click.pass_context
def dump(context: click.Context, output: Path | None) -> None:
    """Write this node's cards as a cards file.

    The cards are those of NVML, or of FILE in: python -m agent --cards FILE cards dump. With
    --mig shares before the command, MIG instances are cards.
    """
    read, cards = context.obj
    with _one_line():
        found = read(cards)
        if not found.inventory.cards:
            raise SettingsError(f"cards: {none_served(found)}")
        text = dump_discovery(found)
        try:
            if output is None:
                click.echo(text, nl=False)
            else:
                output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"output: cannot write {output}: {error}") from error
    for each in (*found.faults, *found.skipped):
        click.echo(f"warning: card {each.index} is left out: {each.reason}", err=True)


@cards_group.command()
@flag(
    _PREFIX,
    "cards",
    metavar="nvml|FILE",
    callback=read_by(parse_cards),
    default="nvml",
    help="Read the cards from the driver (nvml), or from a cards file.",
)
@click.pass_context
def show(context: click.Context, cards: Path | None) -> None:
    """Show the cards, those left out, and links, in the form of a cards file."""
    read, outer = context.obj
    if context.get_parameter_source("cards") is click.core.ParameterSource.DEFAULT:
        cards = outer  # python -m agent --cards FILE cards show
    with _one_line():
        click.echo(dump_discovery(read(cards)), nl=False)


if __name__ == "__main__":
    main()
