"""The settings of the controller: each field with its flag."""

from dataclasses import dataclass
from pathlib import Path

from common import shared_settings as shared
from common.commandline import Seconds, choice, setting
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one replica."""

    kubeconfig: Path | None = shared.kubeconfig()
    names: Names = shared.domain(DEFAULT_DOMAIN, Names)
    policy: Policy = choice(
        Policy.BINPACK,
        prefix=shared.SHARED,
        help="Which card of a node a share prefers; must be the agents' too.",
    )
    node_policy: Policy = choice(Policy.BINPACK, help="Which node a pod prefers.")
    keep: float = setting(
        default=300.0,
        type=Seconds("300", 10, 86_400),
        help="Seconds for which cards are kept for the pods of a workload.",
    )
    retry: float = setting(
        default=5.0,
        type=Seconds("5", 1, 3600),
        help="Seconds until a workload without cards is tried again anyway; doubled each time.",
    )
    longest_retry: float = setting(
        default=120.0, type=Seconds("120", 1, 86_400), help="The most of these seconds."
    )
    lease: str = setting(
        default="gpu-turnstile-gates", help="Lease that elects the replica that answers."
    )
    namespace: str = setting(default="gpu-turnstile", help="Namespace of the lease.")
    identity: str = shared.identity()
    http_host: str = shared.http_host()
    http_port: int = shared.http_port(9443)
