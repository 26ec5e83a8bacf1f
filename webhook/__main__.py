"""``python -m webhook``: the command line."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from contract.errors import InvalidName
from contract.names import DEFAULT_DOMAIN, Names
from webhook import logs
from webhook.errors import SettingsError
from webhook.server import serve
from webhook.settings import Settings

_FILE = click.Path(path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8443,
    envvar="GPU_TURNSTILE_WEBHOOK_PORT",
    show_envvar=True,
    help="Port to listen on.",
)
@click.option(
    "--host",
    default="0.0.0.0",  # noqa: S104 - the API server calls from outside the pod
    envvar="GPU_TURNSTILE_WEBHOOK_HOST",
    show_envvar=True,
    help="Address to listen on.",
)
@click.option(
    "--cert",
    type=_FILE,
    required=True,
    envvar="GPU_TURNSTILE_WEBHOOK_CERT",
    show_envvar=True,
    help="PEM file with the serving certificate and its chain.",
)
@click.option(
    "--key",
    type=_FILE,
    required=True,
    envvar="GPU_TURNSTILE_WEBHOOK_KEY",
    show_envvar=True,
    help="PEM file with the private key, not encrypted.",
)
@click.option(
    "--domain",
    default=DEFAULT_DOMAIN,
    envvar="GPU_TURNSTILE_DOMAIN",
    show_envvar=True,
    help="Domain of resources and annotations; the agents must have the same.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=2,
    envvar="GPU_TURNSTILE_WEBHOOK_WORKERS",
    show_envvar=True,
    help="Processes.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=8,
    envvar="GPU_TURNSTILE_WEBHOOK_THREADS",
    show_envvar=True,
    help="Requests that each process answers at once.",
)
def cli(  # noqa: PLR0913 - one argument a flag
    *, port: int, host: str, cert: Path, key: Path, domain: str, workers: int, threads: int
) -> None:
    """Serve the gpu-turnstile admission webhook over HTTPS."""
    try:
        names = Names(domain)
    except InvalidName as error:
        raise SettingsError(f"--{error}") from error
    logs.configure()
    serve(Settings(host, port, cert, key, names, workers, threads))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    try:
        result = cli.main(arguments, prog_name="python -m webhook", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"webhook: error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        return 130
    except SettingsError as error:
        click.echo(f"webhook: error: {error}", err=True)
        return 2
    return result if isinstance(result, int) else 0  # click hands back the status of --help


if __name__ == "__main__":
    sys.exit(main())
