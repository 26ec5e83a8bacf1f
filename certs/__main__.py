"""``python -m certs``: the command line."""

import base64
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from certs import store
from certs.cluster import RotationApi
from certs.errors import CertsError, InvalidCertificate, InvalidField
from certs.issue import issue
from certs.names import parse_subject
from certs.reading import read_bundle
from certs.report import as_table
from certs.rotation import Environment, rotate
from certs.settings import LONGEST_SECONDS, Settings
from common.commandline import flag, options_of, run
from common.logs import configure

_log = logging.getLogger(__name__)
_PREFIX = "GPU_TURNSTILE_CERTS"
_flag = partial(flag, _PREFIX)
_LONGEST_WAIT = timedelta(minutes=30)
"""Where --wait leaves the rest to the next run."""


@click.group(no_args_is_help=False, context_settings={"show_default": True})
def cli() -> None:
    """Make and keep the certificates of the gpu-turnstile webhook."""


@cli.command("issue")
@_flag(
    "out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for ca.crt, ca.key, tls.crt and tls.key; made if missing.",
)
@_flag(
    "dns",
    multiple=True,
    metavar="NAME",
    help="DNS name of the webhook, such as NAME.NAMESPACE.svc; may be repeated.",
)
@_flag(
    "ip",
    multiple=True,
    metavar="IP",
    help="IP address of the webhook; may be repeated.",
)
@_flag(
    "days",
    type=int,
    default=365,
    help="How long the certificates are valid.",
)
@_flag(
    "force",
    is_flag=True,
    help="Replace files that are there.",
)
def issue_command(
    *, out: Path, dns: tuple[str, ...], ip: tuple[str, ...], days: int, force: bool
) -> None:
    """Make a certificate authority and a serving certificate under it."""
    issued = issue(parse_subject(dns, ip, days), now=datetime.now(UTC))
    store.write(out, issued, force=force)
    click.echo(f"{out}: ca.crt ca.key tls.crt tls.key, valid until {issued.not_after:%Y-%m-%d}")


@cli.command("bundle", short_help="Print ca.crt as a caBundle: base64, one line.")
@_flag(
    "in",
    "directory",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory that holds ca.crt.",
)
def bundle_command(directory: Path) -> None:
    """Print ca.crt as the caBundle of a webhook configuration: base64, one line."""
    path = directory / "ca.crt"
    pem = store.read(path)
    if not read_bundle(pem):
        raise InvalidCertificate(f"{path}: holds no certificate of an authority")
    click.echo(base64.b64encode(pem))


@cli.command("rotate", short_help="Keep and renew the webhook's certificates in a cluster.")
@options_of(Settings, _PREFIX)
@_flag("wait", help="Stay until nothing is left to do.", is_flag=True)
@_flag(
    "every",
    help="Seconds after which to look again, for ever; with --wait.",
    type=click.IntRange(1, LONGEST_SECONDS),
)
def rotate_command(*, wait: bool, every: int | None, **given: Any) -> None:
    """Keep the Secrets of the webhook and the caBundle of its configurations.

    Makes what is missing, renews what has spent two thirds of its life, and changes one
    thing after the other so that every API server accepts every webhook at any time. Ends
    where time has to pass: the next run goes on from there. Safe to run at any time, twice
    at once, and after a run that was killed. Every step is a line of JSON on standard error.
    With --every it goes on until SIGTERM or an error, and repairs what is deleted meanwhile.
    """
    settings = Settings(**given)
    if every is not None:
        if not wait:
            raise InvalidField("every", every, "needs --wait")
        # The first process of a container is not ended by a signal that it does not handle.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    configure()
    env = Environment(_now, _sleep, _unless_repeated())
    try:
        cluster = RotationApi(settings)
        while True:
            rotate(cluster, env, until=_now() + _LONGEST_WAIT if wait else None)
            if every is None:
                break
            _sleep(timedelta(seconds=every))
    except CertsError as error:
        _log.error("rotation failed", extra={"reason": str(error)})
        raise click.exceptions.Exit(1) from error


@cli.command("status", short_help="Show them, and what is done next; changes nothing.")
@options_of(Settings, _PREFIX)
def status_command(**given: Any) -> None:
    """Show what is there, when it is renewed and what is done next; changes nothing."""
    settings = Settings(**given)
    click.echo(as_table(RotationApi(settings).observe(), settings, _now()))


def _unless_repeated() -> Callable[..., None]:
    """Return a log that leaves out a line that is the same as the one before."""
    before: object = None

    def log(message: str, /, **fields: object) -> None:
        nonlocal before
        if (message, fields) != before:
            before = message, fields
            _log.info(message, extra=fields)

    return log


def _now() -> datetime:
    return datetime.now(UTC)


def _sleep(duration: timedelta) -> None:
    time.sleep(duration.total_seconds())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="certs", failures=(CertsError,), status=1)


if __name__ == "__main__":
    sys.exit(main())
