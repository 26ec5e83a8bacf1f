"""The settings of the page: each field with its flag, checked at the start."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from common.commandline import WholeNumber, choice, setting
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
    """Wrap a parser of a flag: its errors name the flag."""

    def read(value: Any) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise SettingsError(f"--{flag}: {error}") from error

    return read


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags of ``python -m view serve``."""

    port: int = setting(
        default=8480,
        type=WholeNumber("port, such as 8480", 1, 65535),
        help="Port to listen on; HTTP without TLS.",
    )
    host: str = setting(
        default="127.0.0.1",
        help="Address to listen on. There is no authentication: anyone who reaches it sees all.",
    )
    hosts: Hosts = setting(
        "allowed-host",
        default=(),
        parse=_read("allowed-host", Hosts),
        multiple=True,
        envvar=f"{PREFIX}_ALLOWED_HOSTS",
        help="A further allowed host name, such as the API server's behind kubectl proxy; "
        "*.example.org is every name below it. Addresses, localhost and the Service are allowed.",
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
        help="URL of a dashboard to link from a pod's page, for example in Grafana; {namespace}, "
        "{pod}, {node} and {owner} are filled in.",
    )
    prometheus: Prometheus | None = setting(
        default=None,
        parse=_read("prometheus", Prometheus),
        prefix=_SHARED,
        metavar="URL",
        help="URL of a Prometheus that scrapes the agents, for example "
        "http://prometheus.monitoring:9090: adds the usage of the last day.  "
        "[default: only current usage]",
    )
    pool_labels: tuple[str, ...] = setting(
        "pool-label",
        default=POOL_LABELS,
        multiple=True,
        envvar=f"{PREFIX}_POOL_LABELS",
        help="The first of these labels that a node has is its pool.",
    )
    agents: str = setting(
        "agent-namespace",
        default=AGENT_NAMESPACE,
        help="Namespace of gpu-turnstile's agents, which measure usage.",
    )
    streams: int = setting(
        default=64,
        type=WholeNumber("number of browsers, such as 64", 1, 1000),
        help="Browsers that receive updates at the same time; further ones poll.",
    )
