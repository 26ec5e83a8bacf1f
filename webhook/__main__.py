"""``python -m webhook``: the command line."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from common.commandline import options_of, run, server_options
from common.errors import SettingsError
from common.logs import configure
from common.serving.app import Application
from contract.claims import driver_name
from contract.errors import InvalidName
from webhook.admission.claims import Claims
from webhook.admission.options import DefaultMemory
from webhook.metrics import Metrics
from webhook.server import make_app, serve
from webhook.settings import Files, Settings

_PREFIX = "GPU_TURNSTILE_WEBHOOK"


@click.command(context_settings={"show_default": True})
@server_options(
    _PREFIX, port=8443, clients="reviews are accepted only from clients with its certificate"
)
@options_of(Settings, _PREFIX)
def cli(**flags: Any) -> None:
    """Serve the gpu-turnstile admission webhook over HTTPS."""
    settings = _settings(**flags)
    configure()
    serve(settings)


def application() -> Application:
    """Make the application for a gunicorn that others configure, with its own certificate.

    ``gunicorn -k asgi --certfile tls.crt --keyfile tls.key 'webhook.__main__:application()'``.
    Flags are read from the environment, except port and certificates: gunicorn has its own flags
    for these.

    Raises:
        click.UsageError: a flag cannot be read.
        SettingsError: flags contradict each other.
    """
    own = ("--cert", "gunicorn's", "--key", "gunicorn's")
    settings = _settings(**cli.make_context("webhook", [*own]).params)
    if settings.files.client_ca is not None:
        raise SettingsError(
            "--client-ca: not supported here: use gunicorn's --ca-certs, --cert-reqs"
        )
    configure()
    return make_app(settings, Metrics(settings.accept))


def _settings(*, cert: Path, key: Path, client_ca: Path | None, **others: Any) -> Settings:
    settings = Settings(files=Files(cert, key, client_ca), **others)
    if settings.default_memory is DefaultMemory.PROPORTIONAL and not settings.largest_card:
        raise SettingsError(
            "--default-memory proportional: needs --largest-card, the memory blocks of the card "
            "from which the memory of a share is computed"
        )
    if settings.claims is Claims.ON:
        driver_name(settings.names)  # or the domain is too long for it
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="webhook", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
