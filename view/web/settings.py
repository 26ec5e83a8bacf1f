"""The settings of the operator."""

from dataclasses import dataclass, field
from pathlib import Path

from contract.names import Names
from placement.scoring import Policy
from view.cluster.agents import AGENT_NAMESPACE
from view.model.node_report import POOL_LABELS
from view.web.hosts import Hosts
from view.web.links import Dashboard


@dataclass(frozen=True, slots=True)
class Settings:
    """One running page.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        names: resources and annotations under the chosen domain.
        kubeconfig: a kubeconfig file; ``None`` for the usual places.
        policy: which card a share prefers, as the agents have it.
        hosts: by which names browsers may ask.
        dashboard: to which a pod's page leads.
        pool_labels: the first of these that a node has names its pool.
        agents: namespace of the agents.
        streams: browsers that are told of changes at the same time.
    """

    host: str
    port: int
    names: Names
    kubeconfig: Path | None = None
    policy: Policy = Policy.BINPACK
    hosts: Hosts = field(default_factory=Hosts)
    dashboard: Dashboard = field(default_factory=Dashboard)
    pool_labels: tuple[str, ...] = POOL_LABELS
    agents: str = AGENT_NAMESPACE
    streams: int = 64
