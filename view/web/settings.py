"""The settings of the page: each field with its flag, checked once at the start."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from common.commandline import choice, setting
from common.errors import SettingsError
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from view.cluster.agents import AGENT_NAMESPACE
from view.cluster.prometheus import Prometheus
from view.model.node_report import POOL_LABELS
from view.web.hosts import Hosts
from view.web.links import Dashboard

PREFIX = "GPU_TURNSTILE_VIEW"
_SHARED = "GPU_TURNSTILE"


def _read(flag: str, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make what reads the value of a flag, or refuses it with a reason."""

    def read(value: Any) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise SettingsError(f"--{flag}: {error}") from error

    return read


@dataclass(frozen=True, slots=True)
class Settings:
    """One running page: what the flags of ``python -m view serve`` say."""

    port: int = setting(
        default=8480,
        type=click.IntRange(1, 65535),
        help="Port to listen on; HTTP without TLS.",
    )
    host: str = setting(
        default="127.0.0.1",
        help="Address to listen on. There is no login: whoever reaches it sees everything.",
    )
    hosts: Hosts = setting(
        "allowed-host",
        default=(),
        parse=_read("allowed-host", Hosts),
        multiple=True,
        envvar=f"{PREFIX}_ALLOWED_HOSTS",
        help="A further name by which browsers ask, such as the API server's behind kubectl proxy; "
        "*.example.org is every name below it. Addresses, localhost and the Service are known.",
    )
    kubeconfig: Path | None = setting(
        default=None,
        prefix=_SHARED,
        type=click.Path(path_type=Path),
        help="A kubeconfig file.  [default: as kubectl finds it, else the pod's service account]",
    )
    names: Names = setting(
        "domain",
        default=DEFAULT_DOMAIN,
        parse=Names,
        prefix=_SHARED,
        help="Domain of resources and annotations; agents and webhook must have the same.",
    )
    policy: Policy = choice(
        Policy.BINPACK,
        prefix=_SHARED,
        help="Which card of a node a share prefers; the agents must have the same.",
    )
    dashboard: Dashboard = setting(
        default="",
        parse=_read("dashboard", Dashboard),
        help="URL to which a pod's page leads, such as a dashboard of Grafana; {namespace}, {pod}, "
        "{node} and {owner} are filled in.",
    )
    prometheus: Prometheus | None = setting(
        default=None,
        parse=_read("prometheus", Prometheus),
        prefix=_SHARED,
        metavar="URL",
        help="A Prometheus that scrapes the agents, such as http://prometheus.monitoring:9090. It "
        "is asked who held and wasted in the last day.  [default: only what is held and used now]",
    )
    pool_labels: tuple[str, ...] = setting(
        "pool-label",
        default=POOL_LABELS,
        multiple=True,
        envvar=f"{PREFIX}_POOL_LABELS",
        help="The first of these labels that a node has names its pool.",
    )
    agents: str = setting(
        "agent-namespace",
        default=AGENT_NAMESPACE,
        help="Where gpu-turnstile's agents run, which are asked what containers use.",
    )
    streams: int = setting(
        default=64,
        type=click.IntRange(1, 1000),
        help="Browsers that are told of changes at the same time; further ones ask now and then.",
    )
