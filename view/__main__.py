"""``python -m view``: the command line."""

import sys
from collections.abc import Sequence

import click

from common.commandline import run
from common.serving.errors import SettingsError
from contract.errors import InvalidName
from view.web.command import serve


@click.group(context_settings={"max_content_width": 100})
def cli() -> None:
    """The cluster's GPUs for people: read only."""  # noqa: D401 -- what --help prints


cli.add_command(serve)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="view", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
