"""``python -m view serve``: the command line of the page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from common.commandline import read_by
from common.logs import configure
from common.serving.errors import SettingsError
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from view.cluster.agents import AGENT_NAMESPACE
from view.cluster.prometheus import VARIABLE, Prometheus
from view.model.node_report import POOL_LABELS
from view.web.hosts import Hosts
from view.web.links import Dashboard
from view.web.server import Settings
from view.web.server import serve as serve_page


def _flag(*names: str, variable: str, text: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(*names, envvar=variable, show_envvar=True, help=text, **more)


def _parsed_by(parse: Callable[[Any], Any]) -> Callable[[Any, click.Parameter, Any], Any]:
    """Make the callback of an option whose value *parse* reads, or refuses with a reason."""

    def read(_context: Any, option: click.Parameter, value: Any) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise SettingsError(f"{option.opts[0]}: {error}") from error

    return read


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@_flag(
    "--port",
    type=click.IntRange(1, 65535),
    default=8480,
    variable="GPU_TURNSTILE_VIEW_PORT",
    text="Port to listen on; HTTP without TLS.",
)
@_flag(
    "--host",
    default="127.0.0.1",
    variable="GPU_TURNSTILE_VIEW_HOST",
    text="Address to listen on. There is no login: whoever reaches it sees everything.",
)
@_flag(
    "--allowed-host",
    "hosts",
    multiple=True,
    callback=_parsed_by(Hosts),
    variable="GPU_TURNSTILE_VIEW_ALLOWED_HOSTS",
    text="A further name by which browsers ask, such as the API server's behind kubectl proxy; "
    "*.example.org is every name below it. Addresses, localhost and the Service are known.",
)
@_flag(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    variable="GPU_TURNSTILE_KUBECONFIG",
    text="A kubeconfig file.  [default: as kubectl finds it, else the pod's service account]",
)
@_flag(
    "--domain",
    "names",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
    variable="GPU_TURNSTILE_DOMAIN",
    text="Domain of resources and annotations; agents and webhook must have the same.",
)
@_flag(
    "--policy",
    type=click.Choice([each.value for each in Policy]),
    default=Policy.BINPACK.value,
    callback=read_by(Policy),
    variable="GPU_TURNSTILE_POLICY",
    text="Which card of a node a share prefers; the agents must have the same.",
)
@_flag(
    "--dashboard",
    default="",
    callback=_parsed_by(Dashboard),
    variable="GPU_TURNSTILE_VIEW_DASHBOARD",
    text="URL to which a pod's page leads, such as a dashboard of Grafana; {namespace}, {pod}, "
    "{node} and {owner} are filled in.",
)
@_flag(
    "--prometheus",
    metavar="URL",
    callback=_parsed_by(Prometheus),
    variable=VARIABLE,
    text="A Prometheus that scrapes the agents, such as http://prometheus.monitoring:9090. It is "
    "asked who held and wasted in the last day.  [default: only what is held and used now]",
)
@_flag(
    "--pool-label",
    "pool_labels",
    multiple=True,
    default=POOL_LABELS,
    variable="GPU_TURNSTILE_VIEW_POOL_LABELS",
    text="The first of these labels that a node has names its pool.",
)
@_flag(
    "--agent-namespace",
    "agents",
    default=AGENT_NAMESPACE,
    variable="GPU_TURNSTILE_VIEW_AGENT_NAMESPACE",
    text="Where gpu-turnstile's agents run, which are asked what containers use.",
)
@_flag(
    "--streams",
    type=click.IntRange(1, 1000),
    default=64,
    variable="GPU_TURNSTILE_VIEW_STREAMS",
    text="Browsers that are told of changes at the same time; further ones ask now and then.",
)
def serve(**flags: Any) -> None:
    """Serve the page: who holds which card, what waits and why. Read only."""
    configure(quiet=("urllib3",))
    serve_page(Settings(**flags))
