"""``python -m certs``: the command line."""

import base64
import logging
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from certs.cluster import RotationApi
from certs.errors import CertsError, InvalidCertificate, InvalidField
from certs.issue import issue
from certs.loop import Environment, keep_rotating, rotate, unless_repeated
from certs.names import LONGEST_DAYS, parse_subject
from certs.reading import read_bundle, read_certificate
from certs.report import as_table
from certs.settings import LONGEST_SECONDS, Settings
from common.commandline import WholeNumber, flag, options_of, run
from common.logs import configure

_log = logging.getLogger(__name__)
_PREFIX = "GPU_TURNSTILE_CERTS"
_flag = partial(flag, _PREFIX)
_LONGEST_WAIT = timedelta(minutes=30)
"""Longest time that --wait takes; the next run continues."""


@click.group(no_args_is_help=False, context_settings={"show_default": True})
def cli() -> None:
    """Issue and renew the certificates of the gpu-turnstile webhook."""


@cli.command("issue")
@_flag(
    "out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for ca.crt, ca.key, tls.crt and tls.key; created if missing.",
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
    type=WholeNumber("number of days, such as 365", 1, LONGEST_DAYS),
    default=365,
    help="Days for which the certificates are valid.",
)
@_flag(
    "force",
    is_flag=True,
    help="Replace existing files.",
)
def issue_command(
    *, out: Path, dns: tuple[str, ...], ip: tuple[str, ...], days: int, force: bool
) -> None:
    """Issue a certificate authority and a serving certificate signed by it."""
    issued = issue(parse_subject(dns, ip, days), now=datetime.now(UTC))
    issued.write(out, force=force)
    end = read_certificate(issued.serving.certificate).not_after
    click.echo(f"{out}: ca.crt ca.key tls.crt tls.key, valid until {end:%Y-%m-%d}")


@cli.command("bundle", short_help="Print ca.crt as a caBundle: base64, one line.")
@_flag(
    "in",
    "directory",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory with ca.crt.",
)
def bundle_command(directory: Path) -> None:
    """Print ca.crt as the caBundle of a webhook configuration: base64, one line."""
    path = directory / "ca.crt"
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise CertsError(f"{path}: {error.strerror}") from error
    if not read_bundle(pem):
        raise InvalidCertificate(f"{path}: has no CA certificate")
    click.echo(base64.b64encode(pem))


@cli.command("rotate", short_help="Issue and renew the webhook's certificates in a cluster.")
@options_of(Settings, _PREFIX)
@_flag("wait", help="Wait until nothing is left to do.", is_flag=True)
@_flag(
    "every",
    help="Seconds between two runs, without an end; needs --wait.",
    type=WholeNumber("number of seconds, such as 3600", 1, LONGEST_SECONDS),
)
def rotate_command(*, wait: bool, every: int | None, **given: Any) -> None:
    """Maintain the Secrets of the webhook and the caBundle of its configurations.

    Creates what is missing, and renews a certificate after two thirds of its validity. The
    steps have an order in which every API server accepts every webhook at any time. Ends if it
    would have to wait; the next run continues. Safe to run at any time, twice at once, and
    after a run that was killed. Every step is a line of JSON on standard error. With --every
    it repeats until SIGTERM or an error, and restores objects that were deleted.
    """
    settings = Settings(**given)
    if every is not None:
        if not wait:
            raise InvalidField("every", every, "needs --wait")
        # The kernel ignores a signal without a handler in the first process of a container.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    configure()
    env = Environment(_now, _sleep, unless_repeated(_info))
    try:
        cluster = RotationApi(settings)
        if every is not None:
            keep_rotating(cluster, env, every=timedelta(seconds=every), longest=_LONGEST_WAIT)
        rotate(cluster, env, until=_now() + _LONGEST_WAIT if wait else None)
    except CertsError as error:
        _log.error("rotation failed", extra={"reason": str(error)})
        raise click.exceptions.Exit(1) from error


@cli.command("status", short_help="Show the certificates and the next step; changes nothing.")
@options_of(Settings, _PREFIX)
def status_command(**given: Any) -> None:
    """Show the certificates, when they are renewed, and the next step; changes nothing."""
    settings = Settings(**given)
    click.echo(as_table(RotationApi(settings).observe(), settings, _now()))


def _info(message: str, /, **fields: object) -> None:
    _log.info(message, extra=fields)


def _now() -> datetime:
    return datetime.now(UTC)


def _sleep(duration: timedelta) -> None:
    time.sleep(duration.total_seconds())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="certs", failures=(CertsError,), status=1)


if __name__ == "__main__":
    sys.exit(main())
