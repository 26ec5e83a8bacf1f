"""``python -m simulator``: the simulated node's parts, each a process, and the demo.

Each process loads its own part alone: they are started by the dozen.
"""

# ruff: noqa: PLC0415

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from common.logs import configure
from contract.errors import ContractError
from simulator.client import ApiClient
from simulator.errors import ProcessDied
from simulator.manifests import read_manifests
from simulator.process import TerminationSignal

_CONTEXT = {
    "show_default": True,
    "max_content_width": 100,
    "auto_envvar_prefix": "GPU_TURNSTILE_SIMULATOR",
}


@click.group(context_settings=_CONTEXT)
def main() -> None:
    """A node without a node: API server, scheduler and kubelet for demo, tests, benchmarks."""  # noqa: D401 -- what --help prints


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    return click.option(*names, show_envvar=True, **attributes)


_PATH = click.Path(path_type=Path)


def _log() -> None:
    configure(quiet=("aiohttp.access",))


@main.command()
@_option("--port", type=click.IntRange(0, 65535), default=8001, help="0 takes a free one.")
@_option("--manifests", type=_PATH, help="Objects that exist from the start.")
@_option("--kubeconfig", type=_PATH, help="Where to write how to reach the server.")
@_option("--seed", type=int, default=0, help="Of UIDs and generated names.")
def apiserver(port: int, manifests: Path | None, kubeconfig: Path | None, seed: int) -> None:
    """Serve the Kubernetes API from memory, on 127.0.0.1."""
    from simulator.api.server import ApiServer, Settings, kubeconfig_for

    _log()
    objects = read_manifests(manifests) if manifests else []
    ending = TerminationSignal()
    with ApiServer(Settings(port=port, seed=seed)) as server:
        server.apply(*objects)
        if kubeconfig:
            kubeconfig.write_text(kubeconfig_for(server.url), encoding="utf-8")
        click.echo(f"serving {server.url}")
        ending.wait()


@main.command(short_help="Bind pods to nodes that have room, not in order.")
@_option("--server", required=True, help="URL of the API server.")
@_option("--seed", type=int, default=0, help="Of the delays before a binding.")
@_option("--workers", type=click.IntRange(1), default=8, help="Bindings at once.")
@_option("--config", type=_PATH, help="A KubeSchedulerConfiguration with extenders.")
def scheduler(server: str, seed: int, workers: int, config: Path | None) -> None:
    """Bind pods to nodes that have room, concurrently and not in order."""
    from simulator.scheduler.configuration import parse_configuration
    from simulator.scheduler.scheduler import Scheduler

    _log()
    settings = None
    if config:
        (document,) = read_manifests(config)
        settings = parse_configuration(document)
    ending = TerminationSignal()
    with ApiClient(server, user_agent="scheduler") as client:
        running = Scheduler(client, settings, seed=seed, workers=workers)
        running.start()
        ending.wait()
        running.stop()


@main.command()
@_option("--server", required=True, help="URL of the API server.")
@_option("--node-name", required=True, help="The node to be.")
@_option("--root-dir", type=_PATH, required=True, help="What survives a restart.")
@_option("--plugin-dir", type=_PATH, required=True, help="Where plugins put their sockets.")
@_option("--pod-resources-socket", type=_PATH, help="Where PodResources is served.")
@_option("--trace", "trace_path", type=_PATH, help="A file of JSON lines: every call to a plugin.")
@_option(
    "--plugin-wait",
    "plugin_wait_s",
    type=float,
    default=0.0,
    help="Seconds a restarted kubelet waits.",
)
@_option("--seed", type=int, default=0, help="Of every random choice.")
def kubelet(server: str, **settings: Any) -> None:
    """Admit and run pods as a kubelet does, without running anything."""
    from simulator.kubelet.node import Kubelet
    from simulator.kubelet.settings import Settings

    _log()
    told = Settings(**settings)
    ending = TerminationSignal()
    with ApiClient(server, user_agent=f"kubelet/{told.node_name}") as client:
        running = Kubelet(told, client)
        try:
            running.start()
            ending.wait()
        finally:
            running.stop()


@main.command(short_help="Run it all: examples, refusals, a burst; tell who was right.")
@_option("--seed", type=int, default=1, help="Of everything random.")
@_option("--pods", type=click.IntRange(1, 400), default=100, help="Pods in the burst.")
@_option("--clients", type=click.IntRange(1, 64), default=32, help="Clients that create them.")
@_option("--examples", type=_PATH, help="A folder of manifests.  [default: deploy/examples]")
@_option("--verbose", is_flag=True, help="Print everything that is done.")
def demo(examples: Path | None, **settings: Any) -> None:
    """Run everything as real processes, submit the examples and a burst, and tell who was right."""
    from simulator.demo import run_demo

    _end_as_ctrl_c_does()
    folder = examples or Path(__file__).parents[1] / "deploy" / "examples"
    sys.exit(0 if run_demo(folder, **settings) else 1)


@main.command(short_help="Fill four nodes, and serve their page.")
@_option("--port", type=click.IntRange(1, 65535), default=8480, help="Of the page, on 127.0.0.1.")
def page(port: int) -> None:
    """Run four nodes with webhook, agents and scheduler extender, and serve their page."""
    from simulator.demo import run_page

    _end_as_ctrl_c_does()
    run_page(port)


def _end_as_ctrl_c_does() -> None:
    """Let a closed terminal or a cancelled job end the nodes too: nothing stays behind."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _frame: sys.exit(128 + number))


def entry() -> None:
    """Run the command line; an error is one line, not a stack trace."""
    try:
        main()
    except (ProcessDied, ContractError, OSError, ValueError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    entry()
