"""``python -m simulator``: the demo, and the simulated node's parts, each as a process.

Each command imports only its own part, because the demo and tests start dozens of processes.
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
    """Simulated API server, scheduler and kubelet for demo, tests and benchmarks."""  # noqa: D401 -- what --help prints


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    return click.option(*names, show_envvar=True, **attributes)


_PATH = click.Path(path_type=Path)


def _log() -> None:
    configure(quiet=("aiohttp.access",))


@main.command()
@_option("--port", type=click.IntRange(0, 65535), default=8001, help="0 takes a free one.")
@_option("--manifests", type=_PATH, help="Objects that exist from the start.")
@_option("--kubeconfig", type=_PATH, help="File for a kubeconfig of this server.")
@_option("--seed", type=int, default=0, help="Seed of the UIDs.")
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


@main.command(short_help="Bind pods to nodes where they fit, not in order.")
@_option("--server", required=True, help="URL of the API server.")
@_option("--seed", type=int, default=0, help="Seed of the delays before a binding.")
@_option("--workers", type=click.IntRange(1), default=8, help="Threads that bind.")
@_option("--config", type=_PATH, help="A KubeSchedulerConfiguration with extenders.")
def scheduler(server: str, seed: int, workers: int, config: Path | None) -> None:
    """Bind pods to nodes where they fit, concurrently and not in order."""
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


@main.command(short_help="Admit and report pods as a kubelet does.")
@_option("--server", required=True, help="URL of the API server.")
@_option("--node-name", required=True, help="Name of the Node.")
@_option("--root-dir", type=_PATH, required=True, help="Folder for what survives a restart.")
@_option("--plugin-dir", type=_PATH, required=True, help="Folder of the plugins' sockets.")
@_option("--pod-resources-socket", type=_PATH, help="Socket for PodResources.")
@_option("--trace", "trace_path", type=_PATH, help="File for all calls to plugins, JSON lines.")
@_option(
    "--plugin-wait",
    "plugin_wait_s",
    type=float,
    default=0.0,
    help="Seconds that a restarted kubelet waits for plugins.",
)
@_option("--seed", type=int, default=0, help="Seed of every random choice.")
def kubelet(server: str, **settings: Any) -> None:
    """Admit pods and report them as running as a kubelet does, without running containers."""
    from simulator.kubelet.node import Kubelet
    from simulator.kubelet.settings import Settings

    _log()
    chosen = Settings(**settings)
    ending = TerminationSignal()
    with ApiClient(server, user_agent=f"kubelet/{chosen.node_name}") as client:
        running = Kubelet(chosen, client)
        try:
            running.start()
            ending.wait()
        finally:
            running.stop()


@main.command(short_help="Run the demo: examples, denials, a burst, and checks.")
@_option("--seed", type=int, default=1, help="Seed of every random choice.")
@_option("--pods", type=click.IntRange(1, 400), default=100, help="Pods in the burst.")
@_option("--clients", type=click.IntRange(1, 64), default=32, help="Clients that create them.")
@_option("--examples", type=_PATH, help="Folder of manifests.  [default: deploy/examples]")
@_option("--verbose", is_flag=True, help="Print every step.")
def demo(examples: Path | None, **settings: Any) -> None:
    """Run all programs as processes, create examples and a burst of pods, and check the results."""
    from simulator.demo import run_demo

    _exit_on_signals()
    folder = examples or Path(__file__).parents[1] / "deploy" / "examples"
    sys.exit(0 if run_demo(folder, **settings) else 1)


@main.command(short_help="Fill four nodes with pods, and serve their page.")
@_option("--port", type=click.IntRange(1, 65535), default=8480, help="Port on 127.0.0.1.")
def page(port: int) -> None:
    """Run four nodes with webhook, agents and scheduler extender, and serve their page."""
    from simulator.demo import run_page

    _exit_on_signals()
    run_page(port)


def _exit_on_signals() -> None:
    """Exit on SIGTERM and SIGHUP as on Ctrl-C, so that no process or file is left."""
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
