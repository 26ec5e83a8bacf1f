"""``python -m view``: the command line."""

import sys
from collections.abc import Sequence

import click

from common.serving.errors import SettingsError
from view.web.command import serve


@click.group(context_settings={"max_content_width": 100})
def cli() -> None:
    """The cluster's GPUs for people: read only."""  # noqa: D401 -- what --help prints


cli.add_command(serve)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    try:
        result = cli.main(arguments, prog_name="python -m view", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"view: error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        return 130
    except SettingsError as error:
        click.echo(f"view: error: {error}", err=True)
        return 2
    return result if isinstance(result, int) else 0  # click hands back the status of --help


if __name__ == "__main__":
    sys.exit(main())
