"""``python -m agent``: the node agent's command line."""

import signal
import sys
from pathlib import Path

import click

from agent.errors import SettingsError
from agent.inject import Injection
from agent.logs import configure
from agent.place import Policy
from agent.settings import Settings, parse_memory_block
from agent.supervisor import Agent
from contract.errors import ContractError
from contract.names import DEFAULT_DOMAIN, Names


@click.command(
    context_settings={
        "show_default": True,
        "max_content_width": 100,
        "auto_envvar_prefix": "GPU_TURNSTILE",
    }
)
@click.option(
    "--node-name",
    required=True,
    envvar=["GPU_TURNSTILE_NODE_NAME", "NODE_NAME"],
    show_envvar=True,
    help="This node's name in the API.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    show_envvar=True,
    help="A kubeconfig file.  [default: the pod's service account]",
)
@click.option(
    "--plugin-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/var/lib/kubelet/device-plugins",
    show_envvar=True,
    help="The kubelet's device plugin directory.",
)
@click.option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_envvar=True,
    help="The kubelet's PodResources socket.",
)
@click.option(
    "--cards",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    show_envvar=True,
    help="A YAML file that lists the node's cards.",
)
@click.option(
    "--memory-block",
    default="256Mi",
    show_envvar=True,
    help="How much memory one vcuda-memory stands for.",
)
@click.option(
    "--domain",
    default=DEFAULT_DOMAIN,
    show_envvar=True,
    help="Domain of resource and annotation names.",
)
@click.option(
    "--policy",
    type=click.Choice([each.value for each in Policy]),
    default=Policy.BINPACK.value,
    show_envvar=True,
    help="Which card a share prefers: the fullest that fits, or the emptiest.",
)
@click.option(
    "--inject",
    type=click.Choice([each.value for each in Injection]),
    default=Injection.NODES.value,
    show_envvar=True,
    help="How cards reach a container: device nodes, or the environment alone "
    "(for the NVIDIA container runtime).",
)
@click.option(
    "--http-host",
    default="0.0.0.0",  # noqa: S104 -- the kubelet probes the pod's address
    show_envvar=True,
    help="Address of the pages below.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=9440,
    show_envvar=True,
    help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_envvar=True,
    help="What is logged, to standard error.",
)
def main(  # noqa: PLR0913 -- one argument per flag
    *,
    node_name: str,
    kubeconfig: Path | None,
    plugin_dir: Path,
    pod_resources_socket: Path,
    cards: Path,
    memory_block: str,
    domain: str,
    policy: str,
    inject: str,
    http_host: str,
    http_port: int,
    log_level: str,
) -> None:
    """Serve this node's GPUs to its kubelet, knowing which container each call is for."""
    configure(log_level)
    # Blocked in every thread started from here on, so that the one wait below gets them.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        agent = Agent(
            Settings(
                node_name=node_name,
                kubeconfig=kubeconfig,
                plugin_dir=plugin_dir,
                pod_resources_socket=pod_resources_socket,
                cards=cards,
                memory_block=parse_memory_block(memory_block),
                names=Names(domain),
                policy=Policy(policy),
                inject=Injection(inject),
                http_host=http_host,
                http_port=http_port,
            )
        )
        agent.start()
    except (SettingsError, ContractError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    signal.sigwait(signals)
    agent.stop()


if __name__ == "__main__":
    main()
