"""``python -m proxy``: the device plugin proxy's command line."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

import click

from common.commandline import Seconds, WholeNumber
from common.errors import SettingsError
from common.listener import EVERY_ADDRESS
from common.logs import configure
from common.status import StatusServer, probe
from proxy.metrics import ProxyMetrics, metrics
from proxy.program import DRA, HUNG_SECONDS, PLUGIN, Proxy

log = logging.getLogger("proxy")

_option = partial(click.option, show_envvar=True)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_LONGEST_PATIENCE = 25.0
"""PreStartContainer has 30 s (K10)."""
_PRIVATE = 0o077


@click.command(
    context_settings={
        "show_default": True,
        "max_content_width": 100,
        "auto_envvar_prefix": "GPU_TURNSTILE_PROXY",
    }
)
@_option(
    "--kubelet-dir",
    type=_FOLDER,
    default="/var/lib/kubelet/device-plugins",
    help="The kubelet's device plugin directory.",
)
@_option(
    "--plugin-dir",
    type=_FOLDER,
    default="/run/gpu-turnstile/device-plugins",
    help="Where plugins register, as they would in the kubelet's directory.",
)
@_option(
    "--mode",
    type=click.Choice([PLUGIN, DRA]),
    default=PLUGIN,
    help="What may register: device plugins, or drivers for Dynamic Resource Allocation.",
)
@_option(
    "--patience",
    type=Seconds("20", 0.1, _LONGEST_PATIENCE),
    default=20.0,
    help="Seconds that a call of the kubelet waits for a plugin and its response. Then the call "
    "fails, and devices without a plugin become unhealthy.",
)
@_option(
    "--http-host",
    default=EVERY_ADDRESS,
    help="Address of the pages below; :: is every address, IPv4 and IPv6.",
)
@_option(
    "--http-port",
    type=WholeNumber("port, such as 9441", 0, 65535),
    default=9441,
    help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What is logged, to standard error.",
)
def main(  # noqa: PLR0913 -- the options of a command line
    *,
    kubelet_dir: Path,
    plugin_dir: Path,
    mode: str,
    patience: float,
    http_host: str,
    http_port: int,
    log_level: str,
) -> None:
    """Proxy the kubelet's calls to device plugins, so that a plugin's restart fails no pod."""
    configure(log_level)
    try:
        proxy = Proxy(kubelet_dir, plugin_dir, patience=patience, mode=mode)
        pages = {
            "/healthz": probe(proxy.liveness_problem),
            "/readyz": probe(proxy.readiness_problem),
            "/metrics": metrics(
                ProxyMetrics(
                    proxy.endpoints, proxy.drivers.found, lambda: proxy.registration.refused
                )
            ),
        }
        server = StatusServer(http_host, http_port, pages, slow=["/metrics"])
    except SettingsError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    log.info("serving", extra={"http_port": server.port, "plugin_dir": str(plugin_dir)})
    os.umask(_PRIVATE)
    asyncio.run(_serve(proxy))
    log.info("stopped")


async def _serve(proxy: Proxy) -> None:
    """Serve until SIGTERM or SIGINT.

    If the event loop hangs, the process ends with a traceback, and is restarted. A liveness probe
    over the network could detect this too, but anyone who can keep its port busy could then have
    this process killed, and make pods fail.
    """
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, proxy.stop)
    await proxy.run(on_beat=lambda: faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
