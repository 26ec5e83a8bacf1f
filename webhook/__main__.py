"""``python -m webhook``: the command line."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from common.commandline import read_by, run, server_options
from common.logs import configure
from common.serving.asgi import Adapter
from contract.errors import InvalidName
from contract.names import DEFAULT_DOMAIN, Names
from webhook.admission.options import DefaultMemory, Options
from webhook.admission.privileged import Privileged
from webhook.admission.reviews import LARGEST_BODY
from webhook.errors import SettingsError
from webhook.metrics import Metrics
from webhook.server.master import make_app, serve
from webhook.settings import Files, Settings

_FILE = click.Path(path_type=Path)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _scheduler_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check the name: a pod of a scheduler that nobody can be waits without a word."""
    if value and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value[:80]!r} is no name of a scheduler")
    return value


def _runtime_class(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check the name: with one that nothing can have, every GPU pod would be refused."""
    if value and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value[:80]!r} is no name of a RuntimeClass")
    return value


@click.command(context_settings={"show_default": True})
@server_options(
    "GPU_TURNSTILE_WEBHOOK",
    port=8443,
    clients="reviews are answered only to clients with its certificate",
)
@click.option(
    "--domain",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
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
    help="Processes; each answers one review at a time.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 65536),
    default=1000,
    envvar="GPU_TURNSTILE_WEBHOOK_CONNECTIONS",
    show_envvar=True,
    help="Connections that each process holds at once; a further one ends the least useful.",
)
@click.option(
    "--largest-card",
    type=click.IntRange(0),
    default=0,
    envvar="GPU_TURNSTILE_WEBHOOK_LARGEST_CARD",
    show_envvar=True,
    help="Memory blocks of the largest card; warn of shares of more, lower what is asked for "
    "beside whole cards. 0: not known.",
)
@click.option(
    "--default-memory",
    type=click.Choice([each.value for each in DefaultMemory]),
    default=DefaultMemory.REFUSE.value,
    envvar="GPU_TURNSTILE_WEBHOOK_DEFAULT_MEMORY",
    show_envvar=True,
    help="Refuse shares without memory, or give them their part of --largest-card.",
)
@click.option(
    "--scheduler-name",
    default="",
    envvar="GPU_TURNSTILE_WEBHOOK_SCHEDULER_NAME",
    show_envvar=True,
    callback=_scheduler_name,
    help="Scheduler for GPU pods that name none or the default one; empty changes nothing.",
)
@click.option(
    "--runtime-class",
    default="",
    envvar="GPU_TURNSTILE_WEBHOOK_RUNTIME_CLASS",
    show_envvar=True,
    callback=_runtime_class,
    help="RuntimeClass for GPU pods that name none; empty changes nothing.",
)
@click.option(
    "--privileged",
    type=click.Choice([each.value for each in Privileged]),
    default=Privileged.WARN.value,
    envvar="GPU_TURNSTILE_WEBHOOK_PRIVILEGED",
    show_envvar=True,
    help="Warn of GPU pods with a privileged container, which sees every card, or deny them.",
)
@click.option(
    "--drain-delay",
    type=click.FloatRange(0, 15),
    default=2.0,
    envvar="GPU_TURNSTILE_WEBHOOK_DRAIN_DELAY",
    show_envvar=True,
    help="Seconds from SIGTERM, while not ready, until no connection is accepted any more.",
)
def cli(**flags: Any) -> None:
    """Serve the gpu-turnstile admission webhook over HTTPS."""
    settings = _settings(**flags)
    configure()
    serve(settings)


def application() -> Adapter:
    """Make the application for a gunicorn of somebody else's, which brings its own certificate.

    ``gunicorn -k asgi --certfile tls.crt --keyfile tls.key 'webhook.__main__:application()'``.
    Flags are read from the environment; those of port, processes and certificates are gunicorn's.

    Raises:
        click.UsageError: a flag cannot be read.
        SettingsError: flags do not go together.
    """
    own = ("--cert", "gunicorn's", "--key", "gunicorn's")
    settings = _settings(**cli.make_context("webhook", [*own]).params)
    if settings.files.client_ca is not None:
        raise SettingsError("--client-ca: is not served here: gunicorn has --ca-certs, --cert-reqs")
    configure()
    metrics = Metrics()
    return Adapter(make_app(settings, metrics), metrics, largest=LARGEST_BODY)


def _settings(  # noqa: PLR0913 - one argument a flag
    *,
    port: int,
    host: str,
    cert: Path,
    key: Path,
    domain: Names,
    workers: int,
    connections: int,
    client_ca: Path | None,
    largest_card: int,
    default_memory: str,
    scheduler_name: str,
    runtime_class: str,
    privileged: str,
    drain_delay: float,
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
    return Settings(
        host,
        port,
        Files(cert, key, client_ca),
        domain,
        workers=workers,
        connections=connections,
        options=options,
        drain_delay=drain_delay,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="webhook", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
