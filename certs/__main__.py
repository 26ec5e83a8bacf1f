"""``python -m certs``: the command line."""

import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click

from certs import store
from certs.cluster import ApiCluster
from certs.errors import CertsError, InvalidField
from certs.issue import issue
from certs.names import parse_subject
from certs.observing import Served, observe
from certs.replicas import parse_replicas
from certs.report import as_json, as_table
from certs.rotation import Environment, Log, rotate
from certs.settings import LONGEST_SECONDS, Settings, parse_settings
from common.commandline import flag, run
from common.logs import configure

_log = logging.getLogger(__name__)
_flag = partial(flag, "GPU_TURNSTILE_CERTS")


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
    click.echo(store.read_ca_bundle(directory))


_NAME = "gpu-turnstile-webhook"
_MANY: dict[str, Any] = {"multiple": True, "metavar": "NAME"}
_ROTATION_FLAGS = (
    _flag("namespace", help="Namespace of both Secrets and the Service.", default="gpu-turnstile"),
    _flag("ca-secret", help="Secret of the CA; nobody else needs it.", default=f"{_NAME}-ca"),
    _flag("tls-secret", help="Secret that the webhook mounts.", default=f"{_NAME}-tls"),
    _flag(
        "service", help="Service of the webhook: it is for SERVICE.NAMESPACE.svc.", default=_NAME
    ),
    _flag("dns", help="Further DNS name of the webhook; may be repeated.", **_MANY),
    _flag(
        "mutating",
        help="MutatingWebhookConfiguration that calls the webhook; may be repeated.",
        default=["gpu-turnstile"],
        **_MANY,
    ),
    _flag(
        "validating",
        help="ValidatingWebhookConfiguration that calls the webhook; may be repeated.",
        default=["gpu-turnstile"],
        **_MANY,
    ),
    _flag("days", help="How long a serving certificate is valid.", type=int, default=90),
    _flag("ca-days", help="How long a CA is valid.", type=int, default=365),
    _flag(
        "settle",
        help="Seconds API servers may need to see a changed caBundle.",
        type=int,
        default=120,
    ),
    _flag(
        "grace",
        help="Seconds webhooks may need to serve what their Secret holds.",
        type=int,
        default=600,
    ),
    _flag(
        "replicas",
        help="HOST:PORT; everybody behind HOST, such as a headless Service, is asked for its "
        "certificate before an old CA is dropped. Without it the time of --grace has to do.",
        metavar="HOST:PORT",
    ),
    _flag(
        "secrets-only",
        help="Keep the two Secrets and no caBundle, for a server that API servers do not call.",
        is_flag=True,
    ),
    _flag(
        "component",
        help="Label app.kubernetes.io/component of both Secrets, by which they are deleted.",
        default="certs",
    ),
    _flag("force", help="Take over Secrets that somebody else made.", is_flag=True),
    click.option(
        "--kubeconfig",
        envvar=["GPU_TURNSTILE_CERTS_KUBECONFIG", "KUBECONFIG"],
        show_envvar=True,
        help="How to reach the API server; the service account of the pod when not given.",
        type=click.Path(dir_okay=False, path_type=Path),
    ),
)


def _rotation_flags(command: Callable[..., None]) -> Callable[..., None]:
    return reduce(lambda wrapped, flag: flag(wrapped), reversed(_ROTATION_FLAGS), command)


@cli.command("rotate", short_help="Keep and renew the webhook's certificates in a cluster.")
@_rotation_flags
@_flag("wait", help="Stay until nothing is left to do.", is_flag=True)
@_flag("timeout", help="Seconds after which --wait leaves the rest.", type=int, default=1800)
@_flag("every", help="Seconds after which to look again, for ever; with --wait.", type=int)
def rotate_command(
    *, wait: bool, timeout: int, every: int | None, kubeconfig: Path | None, **given: Any
) -> None:
    """Keep the Secrets of the webhook and the caBundle of its configurations.

    Makes what is missing, renews what has spent two thirds of its life, and changes one
    thing after the other so that every API server accepts every webhook at any time. Ends
    where time has to pass: the next run goes on from there. Safe to run at any time, twice
    at once, and after a run that was killed. Every step is a line of JSON on standard error.
    With --every it goes on until SIGTERM or an error, and repairs what is deleted meanwhile.
    """
    settings, served = _parse(given)
    if not 0 <= timeout <= LONGEST_SECONDS:
        raise InvalidField("timeout", timeout, f"must be 0 to {LONGEST_SECONDS} seconds")
    if every is not None and not (wait and 1 <= every <= LONGEST_SECONDS):
        raise InvalidField("every", every, f"must be 1 to {LONGEST_SECONDS} seconds, with --wait")
    configure()
    log: Log = _report
    if every is not None:
        log = _unless_repeated(log)
        # The first process of a container is not ended by a signal that it does not handle.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    env = Environment(_now, _sleep, served, log)
    try:
        cluster = ApiCluster(settings.namespace, kubeconfig)
        while True:
            until = _now() + timedelta(seconds=timeout) if wait else None
            rotate(cluster, settings, env, until=until)
            if every is None:
                break
            _sleep(timedelta(seconds=every))
    except CertsError as error:
        _log.error("rotation failed", extra={"reason": str(error)})
        raise click.exceptions.Exit(1) from error


@cli.command("status", short_help="Show them, and what is done next; changes nothing.")
@_rotation_flags
@_flag("output", help="How it is written.", type=click.Choice(["table", "json"]), default="table")
def status_command(*, output: str, kubeconfig: Path | None, **given: Any) -> None:
    """Show what is there, when it is renewed and what is done next; changes nothing."""
    settings, _ = _parse(given)
    observed = observe(ApiCluster(settings.namespace, kubeconfig), settings)
    write = as_json if output == "json" else as_table
    click.echo(write(observed, settings.policy, _now()))


def _parse(given: dict[str, Any]) -> tuple[Settings, Callable[[], Served]]:
    replicas = given.pop("replicas") or ""
    settings = parse_settings(asks=bool(replicas), **given)
    if not replicas:
        return settings, dict  # nobody is asked
    return settings, parse_replicas(replicas, settings.subject.dns[0]).served


def _report(message: str, /, **fields: object) -> None:
    _log.info(message, extra=fields)


def _unless_repeated(log: Log) -> Log:
    """Leave out a step that is the same as the one before."""
    before: tuple[str, dict[str, object]] | None = None

    def told(message: str, /, **fields: object) -> None:
        nonlocal before
        if (message, fields) != before:
            before = message, fields
            log(message, **fields)

    return told


def _now() -> datetime:
    return datetime.now(UTC)


def _sleep(duration: timedelta) -> None:
    time.sleep(duration.total_seconds())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="certs", failures=(CertsError,), status=1)


if __name__ == "__main__":
    sys.exit(main())
