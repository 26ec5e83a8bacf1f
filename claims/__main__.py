"""``python -m claims``: the command line."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from claims.program import ClaimsProgram
from claims.settings import Settings
from common.commandline import options_of, run
from common.errors import SettingsError
from common.logs import configure
from contract.errors import InvalidName


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@options_of(Settings, "GPU_TURNSTILE_CLAIMS")
def cli(**flags: Any) -> None:
    """Make the ResourceClaimTemplates that gpu-turnstile's webhook names, and sweep unused ones."""
    configure(quiet=("urllib3",))
    ClaimsProgram(Settings(**flags)).serve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="claims", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
