"""``python -m agent``: the node agent's command line."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from common.deferred import defer

# 19 of 74 MiB that an idle agent would have: the API's models, OAuth, streams, leader election.
defer("kubernetes", "kubernetes.config")

import click

from agent.app.supervisor import Agent
from agent.cards.cards_file import dump_discovery
from agent.cards.source import look, none_served
from agent.cards.topology_text import describe
from agent.cards.xids import APPLICATION_XIDS
from agent.errors import SettingsError
from agent.host.memory import limit_arenas
from agent.host.open_files import raise_limit
from agent.injection.inject import Injection, parse_extra_devices
from agent.settings import (
    CDI_DIR,
    CRI_SOCKET,
    HAMI_LIBRARY_DIR,
    HOST_ROOT,
    STATE_DIR,
    EnforcementMode,
    MetricsNames,
    Settings,
    parse_driver_dir,
    parse_fatal_xids,
    parse_ignored_xids,
    parse_memory_block,
    parse_period,
)
from common.commandline import read_by
from common.logs import configure
from contract.errors import ContractError
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy

option = partial(click.option, show_envvar=True)


def _cards_from(_context: click.Context, _option: click.Parameter, value: str) -> Path | None:
    """Read where cards come from; a file is opened later, where its errors are told."""
    return None if value == "nvml" else Path(value)


@contextmanager
def _one_line() -> Iterator[None]:
    """End with one line and exit code 2 when a setting cannot be used."""
    try:
        yield
    except (SettingsError, ContractError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


class _OneLineGroup(click.Group):
    """A command whose options tell what they cannot use in one line as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; end as :func:`_one_line` says."""
        with _one_line():
            return super().parse_args(ctx, args)


@click.group(
    cls=_OneLineGroup,
    invoke_without_command=True,
    context_settings={
        "show_default": True,
        "max_content_width": 100,
        "auto_envvar_prefix": "GPU_TURNSTILE",
    },
)
@option(
    "--node-name",
    envvar=["GPU_TURNSTILE_NODE_NAME", "NODE_NAME"],
    help="This node's name in the API.  [required to serve]",
)
@option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A kubeconfig file.  [default: the pod's service account]",
)
@option(
    "--kubelet-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/var/lib/kubelet/device-plugins",
    help="The kubelet's own device plugin directory, only read: a new kubelet.sock there is a new "
    "kubelet.",
)
@option(
    "--plugin-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/var/lib/kubelet/device-plugins",
    help="The folder where the agent registers: the device plugin proxy's, or the kubelet's own.",
)
@option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path, readable=False),
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    help="The kubelet's PodResources socket.",
)
@option(
    "--cards",
    metavar="nvml|FILE",
    callback=_cards_from,
    default="nvml",
    help="Where the node's cards are known from: the driver, or a YAML file that lists them.",
)
@option(
    "--recovery-quiet",
    default="5m",
    callback=read_by(partial(parse_period, "recovery-quiet")),
    help="How long an unhealthy card must be without a fault before it may come back.",
)
@option(
    "--ignore-xids",
    default="",
    show_default="none",
    callback=read_by(parse_ignored_xids),
    help="Further Xids that leave a card healthy, comma-separated, besides those of applications, "
    + ", ".join(str(xid) for xid in sorted(APPLICATION_XIDS))
    + "; or all.",
)
@option(
    "--fatal-xids",
    default="",
    show_default="none",
    callback=read_by(parse_fatal_xids),
    help="Xids that make a card unhealthy even if they are ignored, comma-separated.",
)
@option(
    "--memory-block",
    default="256Mi",
    callback=read_by(parse_memory_block),
    help="How much memory one vcuda-memory stands for.",
)
@option(
    "--domain",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
    help="Domain of resource and annotation names.",
)
@option(
    "--policy",
    type=click.Choice([each.value for each in Policy]),
    default=Policy.BINPACK.value,
    callback=read_by(Policy),
    help="Which card a share prefers: the fullest that fits, or the emptiest. A pod's annotation "
    "gpu-policy goes before it.",
)
@option(
    "--predicate",
    type=click.Choice(["prefer", "strict"]),
    default="prefer",
    callback=read_by("strict".__eq__),
    help="What becomes of a pod whose scheduler chose cards (predicate-gpu-idx-<i>) that do not "
    "fit: others are taken, or it is refused.",
)
@option(
    "--numa",
    type=click.Choice(["off", "on"]),
    default="off",
    callback=read_by("on".__eq__),
    help="Whether the kubelet is told each card's NUMA node. Its Topology Manager counts places, "
    "not cards, and refuses shares that fit: on is for nodes that give out whole cards only.",
)
@option(
    "--inject",
    type=click.Choice([each.value for each in Injection]),
    default=Injection.NODES.value,
    callback=read_by(Injection),
    help="How cards reach a container: device nodes, the environment alone (for the NVIDIA "
    "container runtime), or CDI names.",
)
@option(
    "--extra-devices",
    default="",
    show_default="none",
    callback=read_by(parse_extra_devices),
    help="Further device nodes for every GPU container, comma-separated, such as "
    "/dev/infiniband/uverbs0.",
)
@option(
    "--driver-dir",
    metavar="HOST[:CONTAINER]|auto[:CONTAINER]",
    default="",
    show_default="none",
    callback=read_by(parse_driver_dir),
    help="A folder of driver files (bin, lib, lib64) that containers find read-only, by default "
    "at /usr/local/nvidia: for hosts without the NVIDIA container runtime. With auto the agent "
    "makes it in --state-dir of the driver in --host-root, and renews it.",
)
@option(
    "--host-root",
    type=click.Path(path_type=Path, file_okay=False),
    default=str(HOST_ROOT),
    help="Where the host's root is mounted; read with --driver-dir auto alone.",
)
@option(
    "--cdi-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=str(CDI_DIR),
    help="Where the CDI spec is written with --inject cdi, if the host has none for its cards.",
)
@option(
    "--enforcement",
    type=click.Choice([each.value for each in EnforcementMode]),
    default=EnforcementMode.NONE.value,
    callback=read_by(EnforcementMode),
    help="What holds a container to its share: nothing, Tencent's vcuda-controller (in "
    "--driver-dir), or HAMi-core.",
)
@option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=str(STATE_DIR),
    help="Where the files that enforcement mounts into containers are kept.",
)
@option(
    "--hami-library-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=str(HAMI_LIBRARY_DIR),
    help="The host's folder with HAMi-core's libvgpu.so.",
)
@option(
    "--cri-socket",
    type=click.Path(path_type=Path, readable=False),
    default=str(CRI_SOCKET),
    help="The container runtime's socket; vcuda and --measure-use ask it which container a "
    "process is in.",
)
@option(
    "--measure-use",
    type=click.Choice(["off", "on"]),
    default="off",
    callback=read_by("on".__eq__),
    help="Whether it is measured what each container uses of its cards; needs hostPID and "
    "--cri-socket.",
)
@option(
    "--use-period",
    default="5s",
    callback=read_by(partial(parse_period, "use-period")),
    help="How often that is measured.",
)
@option(
    "--metrics-names",
    type=click.Choice([each.value for each in MetricsNames]),
    default=MetricsNames.OWN.value,
    callback=read_by(MetricsNames),
    help="Whether gpu-manager's gauges of containers are served too, at its path /metric.",
)
@option(
    "--http-host",
    default="0.0.0.0",  # noqa: S104 -- the kubelet probes the pod's address
    help="Address of the pages below.",
)
@option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=9440,
    help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
)
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What is logged, to standard error.",
)
@click.pass_context
def main(
    context: click.Context,
    /,
    *,
    node_name: str | None,
    domain: Names,
    predicate: bool,
    log_level: str,
    **flags: Any,
) -> None:
    """Serve this node's GPUs to its kubelet, knowing which container each call is for."""
    context.obj = flags["cards"]
    if context.invoked_subcommand is not None:
        return
    if node_name is None:
        param = next(each for each in context.command.params if each.name == "node_name")
        raise click.MissingParameter(ctx=context, param=param)
    configure(log_level)
    limit_arenas()
    raise_limit()
    # Blocked in every thread started from here on, so that the one wait below gets them.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with _one_line():
        agent = Agent(
            Settings(
                node_name=node_name,
                names=domain,
                strict_predicate=predicate,
                **flags,
            )
        )
        agent.start()
    signal.sigwait(signals)
    agent.stop()


@main.group("cards")
def cards_group() -> None:
    """Look at this node's cards."""


@cards_group.command()
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write.  [default: standard output]",
)
@click.pass_context
def dump(context: click.Context, output: Path | None) -> None:
    """Write the cards that NVML knows, or --cards FILE before this word, as a cards file."""
    with _one_line():
        found = look(context.obj)
        if not found.inventory.cards:
            raise SettingsError(f"cards: {none_served(found)}")
        text = dump_discovery(found)
        try:
            if output is None:
                click.echo(text, nl=False)
            else:
                output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"output: cannot write {output}: {error}") from error
    for each in (*found.faults, *found.skipped):
        click.echo(f"warning: card {each.index} is left out: {each.reason}", err=True)


@cards_group.command()
@option(
    "--cards",
    metavar="nvml|FILE",
    callback=_cards_from,
    default="nvml",
    envvar="GPU_TURNSTILE_CARDS",
    help="The driver, or a cards file.",
)
@click.pass_context
def show(context: click.Context, cards: Path | None) -> None:
    """Show cards, and a matrix of their links as nvidia-smi topo -m does."""
    if context.get_parameter_source("cards") is click.core.ParameterSource.DEFAULT:
        cards = context.obj  # python -m agent --cards FILE cards show
    with _one_line():
        click.echo(describe(look(cards)), nl=False)


if __name__ == "__main__":
    main()
