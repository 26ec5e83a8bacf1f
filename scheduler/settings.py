"""The settings of the operator."""

from dataclasses import dataclass
from pathlib import Path

from common.serving.tls import Files
from contract.names import Names
from placement.scoring import Policy


@dataclass(frozen=True, slots=True)
class Settings:
    """One running extender.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        files: for TLS.
        names: resources and annotations under the chosen domain.
        kubeconfig: a kubeconfig file; ``None`` for the service account of the pod.
        policy: which card a share prefers, as the agents have it.
        node_policy: which node a pod prefers.
        namespace: of lease and EndpointSlice.
        lease: name of the lease; empty where there is one replica only and none is taken.
        endpoint_slice: name of the EndpointSlice that the leader writes itself into; empty for
            none.
        identity: this replica's name, the pod's.
        address: where the leader is reached, the pod's IP.
        threads: Bindings that wait for the API server at the same time.
    """

    host: str
    port: int
    files: Files
    names: Names
    kubeconfig: Path | None = None
    policy: Policy = Policy.BINPACK
    node_policy: Policy = Policy.BINPACK
    namespace: str = "gpu-turnstile"
    lease: str = "gpu-turnstile-scheduler"
    endpoint_slice: str = ""
    identity: str = "gpu-turnstile-scheduler"
    address: str = ""
    threads: int = 32
