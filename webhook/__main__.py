"""``python -m webhook``: the command line."""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from common.commandline import flag, read_by, run, server_options
from common.logs import configure
from common.serving.app import Application
from common.text import cut
from contract.errors import InvalidName
from contract.names import DEFAULT_DOMAIN, Names
from webhook.admission.options import DefaultMemory, Options
from webhook.admission.privileged import Privileged
from webhook.errors import SettingsError
from webhook.metrics import Metrics
from webhook.server import make_app, serve
from webhook.settings import Files, Settings

_PREFIX = "GPU_TURNSTILE_WEBHOOK"
_flag, _shared = partial(flag, _PREFIX), partial(flag, "GPU_TURNSTILE")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _scheduler_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check the name: a pod of a scheduler that nobody can be waits without a word."""
    if value and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{cut(value, 80)!r} is no name of a scheduler")
    return value


def _runtime_class(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check the name: with one that nothing can have, every GPU pod would be refused."""
    if value and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{cut(value, 80)!r} is no name of a RuntimeClass")
    return value


@click.command(context_settings={"show_default": True})
@server_options(
    _PREFIX,
    port=8443,
    clients="reviews are answered only to clients with its certificate",
)
@_shared(
    "domain",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
    help="Domain of resources and annotations; the agents must have the same.",
)
@_flag(
    "connections",
    type=click.IntRange(1, 65536),
    default=1000,
    help="Connections that are held at once; a further one ends the least useful.",
)
@_flag(
    "largest-card",
    type=click.IntRange(0),
    default=0,
    help="Memory blocks of the largest card; warn of shares of more, lower what is asked for "
    "beside whole cards. 0: not known.",
)
@_flag(
    "default-memory",
    type=click.Choice([each.value for each in DefaultMemory]),
    default=DefaultMemory.REFUSE.value,
    help="Refuse shares without memory, or give them their part of --largest-card.",
)
@_flag(
    "scheduler-name",
    default="",
    callback=_scheduler_name,
    help="Scheduler for GPU pods that name none or the default one; empty changes nothing.",
)
@_flag(
    "runtime-class",
    default="",
    callback=_runtime_class,
    help="RuntimeClass for GPU pods that name none; empty changes nothing.",
)
@_flag(
    "privileged",
    type=click.Choice([each.value for each in Privileged]),
    default=Privileged.WARN.value,
    help="Warn of GPU pods with a privileged container, which sees every card, or deny them.",
)
@_flag(
    "drain-delay",
    type=click.FloatRange(0, 15),
    default=2.0,
    help="Seconds from SIGTERM, while not ready, until no connection is accepted any more.",
)
def cli(**flags: Any) -> None:
    """Serve the gpu-turnstile admission webhook over HTTPS."""
    settings = _settings(**flags)
    configure()
    serve(settings)


def application() -> Application:
    """Make the application for a gunicorn of somebody else's, which brings its own certificate.

    ``gunicorn -k asgi --certfile tls.crt --keyfile tls.key 'webhook.__main__:application()'``.
    Flags are read from the environment; those of port and certificates are gunicorn's.

    Raises:
        click.UsageError: a flag cannot be read.
        SettingsError: flags do not go together.
    """
    own = ("--cert", "gunicorn's", "--key", "gunicorn's")
    settings = _settings(**cli.make_context("webhook", [*own]).params)
    if settings.files.client_ca is not None:
        raise SettingsError("--client-ca: is not served here: gunicorn has --ca-certs, --cert-reqs")
    configure()
    return make_app(settings, Metrics())


def _settings(  # noqa: PLR0913 - one argument a flag
    *,
    cert: Path,
    key: Path,
    client_ca: Path | None,
    domain: Names,
    largest_card: int,
    default_memory: str,
    scheduler_name: str,
    runtime_class: str,
    privileged: str,
    **server: Any,
) -> Settings:
    options = Options(
        largest_card,
        DefaultMemory(default_memory),
        scheduler_name,
        runtime_class,
        Privileged(privileged),
    )
    if options.default_memory is DefaultMemory.PROPORTIONAL and not largest_card:
        raise SettingsError(
            "--default-memory proportional: needs --largest-card: the memory blocks of the card "
            "of which shares get their part"
        )
    files = Files(cert, key, client_ca)
    return Settings(files=files, names=domain, options=options, **server)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="webhook", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
