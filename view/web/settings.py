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
    """One running page: what the flags of ``python -m view serve`` say."""

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
