"""``python -m certs``: the command line."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from certs import store
from certs.errors import CertsError
from certs.issue import issue
from certs.names import parse_subject


@click.group(no_args_is_help=False, context_settings={"show_default": True})
def cli() -> None:
    """Make and keep the certificates of the gpu-turnstile webhook."""


@cli.command("issue")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="GPU_TURNSTILE_CERTS_OUT",
    show_envvar=True,
    help="Directory for ca.crt, ca.key, tls.crt and tls.key; made if missing.",
)
@click.option(
    "--dns",
    multiple=True,
    metavar="NAME",
    envvar="GPU_TURNSTILE_CERTS_DNS",
    show_envvar=True,
    help="DNS name of the webhook, such as NAME.NAMESPACE.svc; may be repeated.",
)
@click.option(
    "--ip",
    multiple=True,
    metavar="IP",
    envvar="GPU_TURNSTILE_CERTS_IP",
    show_envvar=True,
    help="IP address of the webhook; may be repeated.",
)
@click.option(
    "--days",
    type=int,
    default=365,
    envvar="GPU_TURNSTILE_CERTS_DAYS",
    show_envvar=True,
    help="How long the certificates are valid.",
)
@click.option(
    "--force",
    is_flag=True,
    envvar="GPU_TURNSTILE_CERTS_FORCE",
    show_envvar=True,
    help="Replace files that are there.",
)
def issue_command(
    *, out: Path, dns: tuple[str, ...], ip: tuple[str, ...], days: int, force: bool
) -> None:
    """Make a certificate authority and a serving certificate under it."""
    issued = issue(parse_subject(dns, ip, days), now=datetime.now(UTC))
    store.write(out, issued, force=force)
    click.echo(f"{out}: ca.crt ca.key tls.crt tls.key, valid until {issued.not_after:%Y-%m-%d}")


@cli.command("bundle")
@click.option(
    "--in",
    "directory",
    type=click.Path(path_type=Path),
    required=True,
    envvar="GPU_TURNSTILE_CERTS_IN",
    show_envvar=True,
    help="Directory that holds ca.crt.",
)
def bundle_command(directory: Path) -> None:
    """Print ca.crt as the caBundle of a webhook configuration: base64, one line."""
    click.echo(store.read_ca_bundle(directory))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    try:
        result = cli.main(arguments, prog_name="python -m certs", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"certs: error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        return 130
    except CertsError as error:
        click.echo(f"certs: error: {error}", err=True)
        return 1
    return result if isinstance(result, int) else 0  # click hands back the status of --help


if __name__ == "__main__":
    sys.exit(main())
