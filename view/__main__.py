"""``python -m view``: the command line."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from common.commandline import options_of, run
from common.errors import SettingsError
from common.logs import configure
from contract.errors import InvalidName
from view.web import server
from view.web.settings import PREFIX, Settings


@click.group(context_settings={"max_content_width": 100})
def cli() -> None:
    """Show the GPUs of the cluster; read-only."""


@cli.command(context_settings={"show_default": True, "max_content_width": 100})
@options_of(Settings, PREFIX)
def serve(**flags: Any) -> None:
    """Serve the web page: who holds which card, and why pods are pending. Read-only."""
    configure(quiet=("urllib3",))
    server.serve(Settings(**flags))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="view", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
