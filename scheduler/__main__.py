"""``python -m scheduler``: the command line."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from common.commandline import options_of, run, server_options
from common.errors import SettingsError
from common.logs import configure
from common.serving.tls import Files
from contract.errors import InvalidName
from scheduler.server import serve
from scheduler.settings import Settings

_PREFIX = "GPU_TURNSTILE_SCHEDULER"


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@server_options(
    _PREFIX,
    port=8444,
    required=False,
    clients="requests are accepted only from clients with its certificate",
)
@options_of(Settings, _PREFIX)
def cli(*, cert: Path | None, key: Path | None, client_ca: Path | None, **others: Any) -> None:
    """Serve the gpu-turnstile scheduler extender."""
    beside = others["kube_scheduler_lease"]
    for name, value in (("cert", cert), ("key", key)):
        if not beside and value is None:
            raise SettingsError(f"--{name}: Required value: unless --kube-scheduler-lease is set")
    for name, value in (("cert", cert), ("key", key), ("client-ca", client_ca)):
        if beside and value is not None:
            raise SettingsError(f"--{name}: Forbidden: --kube-scheduler-lease serves HTTP")
    if beside and others["endpoint_slice"]:
        raise SettingsError("--endpoint-slice: Forbidden: --kube-scheduler-lease needs none")
    if others["endpoint_slice"] and not others["address"]:
        raise SettingsError("--address: Required value: --endpoint-slice needs it")
    configure(quiet=("urllib3",))
    files = Files(cert, key, client_ca) if cert is not None and key is not None else None
    serve(Settings(files=files, **others))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="scheduler", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
