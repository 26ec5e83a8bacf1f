"""``python -m view serve``: the command line of the page."""

from pathlib import Path

import click

from common.commandline import read_by
from common.logs import configure
from common.serving.errors import SettingsError
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from view.cluster.agents import AGENT_NAMESPACE
from view.model.node_report import POOL_LABELS
from view.web.hosts import Hosts
from view.web.links import Dashboard
from view.web.server import serve as serve_page
from view.web.settings import Settings


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8480,
    envvar="GPU_TURNSTILE_VIEW_PORT",
    show_envvar=True,
    help="Port to listen on; HTTP without TLS.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    envvar="GPU_TURNSTILE_VIEW_HOST",
    show_envvar=True,
    help="Address to listen on. There is no login: whoever reaches it sees everything.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    envvar="GPU_TURNSTILE_VIEW_ALLOWED_HOSTS",
    show_envvar=True,
    help="A further name by which browsers ask, such as the API server's behind kubectl proxy; "
    "*.example.org is every name below it. Addresses, localhost and the Service are known.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    envvar="GPU_TURNSTILE_KUBECONFIG",
    show_envvar=True,
    help="A kubeconfig file.  [default: as kubectl finds it, else the pod's service account]",
)
@click.option(
    "--domain",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
    envvar="GPU_TURNSTILE_DOMAIN",
    show_envvar=True,
    help="Domain of resources and annotations; agents and webhook must have the same.",
)
@click.option(
    "--policy",
    type=click.Choice([each.value for each in Policy]),
    default=Policy.BINPACK.value,
    envvar="GPU_TURNSTILE_POLICY",
    show_envvar=True,
    help="Which card of a node a share prefers; the agents must have the same.",
)
@click.option(
    "--dashboard",
    default="",
    envvar="GPU_TURNSTILE_VIEW_DASHBOARD",
    show_envvar=True,
    help="URL to which a pod's page leads, such as a dashboard of Grafana; {namespace}, {pod}, "
    "{node} and {owner} are filled in.",
)
@click.option(
    "--pool-label",
    "pool_labels",
    multiple=True,
    default=POOL_LABELS,
    envvar="GPU_TURNSTILE_VIEW_POOL_LABELS",
    show_envvar=True,
    help="The first of these labels that a node has names its pool.",
)
@click.option(
    "--agent-namespace",
    default=AGENT_NAMESPACE,
    envvar="GPU_TURNSTILE_VIEW_AGENT_NAMESPACE",
    show_envvar=True,
    help="Where gpu-turnstile's agents run, which are asked what containers use.",
)
@click.option(
    "--streams",
    type=click.IntRange(1, 1000),
    default=64,
    envvar="GPU_TURNSTILE_VIEW_STREAMS",
    show_envvar=True,
    help="Browsers that are told of changes at the same time; further ones ask now and then.",
)
def serve(  # noqa: PLR0913 - one argument a flag
    *,
    port: int,
    host: str,
    allowed_hosts: tuple[str, ...],
    kubeconfig: Path | None,
    domain: Names,
    policy: str,
    dashboard: str,
    pool_labels: tuple[str, ...],
    agent_namespace: str,
    streams: int,
) -> None:
    """Serve the page: who holds which card, what waits and why. Read only."""
    try:
        hosts = Hosts(allowed_hosts)
    except ValueError as error:
        raise SettingsError(f"--allowed-host: {error}") from error
    try:
        link = Dashboard(dashboard)
    except ValueError as error:
        raise SettingsError(f"--dashboard: {error}") from error
    configure(quiet=("urllib3",))
    serve_page(
        Settings(
            host,
            port,
            domain,
            kubeconfig=kubeconfig,
            policy=Policy(policy),
            hosts=hosts,
            dashboard=link,
            pool_labels=pool_labels,
            agents=agent_namespace,
            streams=streams,
        )
    )
