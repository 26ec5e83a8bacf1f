"""The settings of the extender: each field with its flag."""

from dataclasses import dataclass
from pathlib import Path

from common import shared_settings as shared
from common.commandline import WholeNumber, choice, setting, switch
from common.serving.tls import Files
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one extender; host, port and files are those of every server.

    Attributes:
        files: the certificate; ``None`` to serve HTTP, and only this pod's requests of schedulers.
    """

    host: str
    port: int
    files: Files | None
    kubeconfig: Path | None = shared.kubeconfig()
    names: Names = shared.domain(DEFAULT_DOMAIN, Names)
    policy: Policy = choice(
        Policy.BINPACK,
        prefix=shared.SHARED,
        help="Which card of a node a share prefers; must be the agents' too.",
    )
    node_policy: Policy = choice(Policy.BINPACK, help="Which node a pod prefers.")
    lease: str = setting(
        default="gpu-turnstile-scheduler",
        help="Lease that elects the replica that binds. Empty: a single replica without a lease.",
    )
    kube_scheduler_lease: str = setting(
        default="",
        help="Lease of the kube-scheduler in the same pod: this replica binds while that one holds "
        "it, and --lease is not used. Serves HTTP, and only that pod's requests.",
    )
    namespace: str = setting(
        default="gpu-turnstile", help="Namespace of the leases and of the EndpointSlice."
    )
    endpoint_slice: str = setting(
        default="",
        help="EndpointSlice of the Service; the leader writes --address into it, or into the one "
        "with -ipv6 after its name. Empty: none.",
    )
    identity: str = shared.identity()
    address: str = setting(default="", help="IP of this replica, for --endpoint-slice.")
    threads: int = setting(
        default=32,
        type=WholeNumber("number of threads, such as 32", 2, 256),
        help="Most Bindings that wait for the API server at the same time. With twice as many in "
        "progress, filter waits up to 1 s.",
    )
    preempt: bool = switch(
        help="Whether pods of lower priority are evicted for a pod that fits on no card."
    )
    workloads: bool = switch(
        help="Whether the cards count that an AdmissionCheck of Kueue keeps for workloads "
        "(python -m gates)."
    )
