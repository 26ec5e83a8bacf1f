"""``python -m gates``: the command line."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from common.commandline import options_of, run
from common.errors import SettingsError
from common.logs import configure
from contract.errors import InvalidName
from gates.program import GatesProgram
from gates.settings import Settings


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@options_of(Settings, "GPU_TURNSTILE_GATES")
def cli(**flags: Any) -> None:
    """Answer Kueue's AdmissionChecks gpu-turnstile.io/cards: do all pods of a workload fit?"""
    configure(quiet=("urllib3",))
    GatesProgram(Settings(**flags)).serve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="gates", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
