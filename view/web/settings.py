"""The settings of the operator."""

from dataclasses import dataclass, field
from pathlib import Path

from contract.names import Names
from placement.scoring import Policy
from view.cluster.agents import AGENT_NAMESPACE
from view.web.hosts import Hosts


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
        agents: namespace of the agents.
        streams: browsers that are told of changes at the same time.
    """

    host: str
    port: int
    names: Names
    kubeconfig: Path | None = None
    policy: Policy = Policy.BINPACK
    hosts: Hosts = field(default_factory=Hosts)
    agents: str = AGENT_NAMESPACE
    streams: int = 64
