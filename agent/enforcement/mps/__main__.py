"""``python -m agent.enforcement.mps``: run the MPS control daemons of this node."""

import logging
import signal
import sys
import threading
from typing import Any

import click

from agent.enforcement.mps.program import MpsProgram, MpsSettings
from common.commandline import flag, options_of
from common.errors import SettingsError
from common.logs import configure
from common.status import StatusServer, probe

log = logging.getLogger("agent.enforcement.mps")

_PREFIX = "GPU_TURNSTILE_MPS"


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@options_of(MpsSettings, _PREFIX)
@flag(
    _PREFIX,
    "log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="The lowest level that is logged, to standard error.",
)
def main(*, log_level: str, **flags: Any) -> None:
    """Run an MPS control daemon for each set of cards that containers share."""
    configure(log_level)
    settings = MpsSettings(**flags)
    program, stop = MpsProgram(settings), threading.Event()
    pages = {
        "/healthz": probe(program.liveness_problem),
        "/readyz": probe(program.readiness_problem),
        "/metrics": program.metrics,
    }
    try:
        server = StatusServer(settings.http_host, settings.http_port, pages, slow=["/metrics"])
    except SettingsError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: stop.set())
    log.info("serving", extra={"http_port": server.port, "mps_dir": str(settings.dir)})
    program.run(stop)
    server.stop()
    log.info("stopped")


if __name__ == "__main__":
    main()
