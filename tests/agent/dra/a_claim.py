"""Claims, their pods, and a kubelet that plays its side of Dynamic Resource Allocation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from agent.dra.claims import ClaimRef
from common.grpc_services import make_stub
from common.kubelet_api import dra_pb2 as pb
from common.kubelet_api import drahealth_pb2
from common.kubelet_api import pluginregistration_pb2 as registration
from simulator.client import ApiClient
from tests.agent.fakes import DEADLINE_S, eventually, make_manifest

DRIVER, NODE = "gpu.tencent.com", "n1"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PODS = "/api/v1/namespaces/default/pods"


def result(request: str, device: str, cores: int, memory: int, **more: Any) -> dict[str, Any]:
    return {
        "request": request,
        "driver": DRIVER,
        "pool": NODE,
        "device": device,
        "shareID": f"share-{request}-{device}",
        "consumedCapacity": {"cores": str(cores), "memory": str(memory)},
        **more,
    }


def claim_of(pod: Mapping[str, Any], *results: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    metadata = pod["metadata"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name or f"{metadata['name']}-gpus", "namespace": "default"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}],
        },
    }


def add(
    admin: ApiClient, name: str, *shares: tuple[str, int, int], containers: int = 1
) -> ClaimRef:
    """Create a pod and its claim: each container ``c<i>`` has one share (device, cores, memory)."""
    limits = [(cores, memory) for _, cores, memory in shares]
    pod = admin.create(PODS, make_manifest(name, *limits))
    results = [result(f"c{at}", *share) for at, share in enumerate(shares)]
    metadata = admin.create(CLAIMS, claim_of(pod, *results))["metadata"]
    return ClaimRef("default", metadata["name"], metadata["uid"])


class DraKubelet:
    """The kubelet's side: registers what it finds in its registry, and calls the newest plugin."""

    def __init__(self, root: Path) -> None:
        self._registry = root / "plugins_registry"
        self._registry.mkdir(parents=True, exist_ok=True)
        self.endpoint = Path()
        self.services: Sequence[str] = ()

    def register(self) -> None:
        """Register the plugin whose socket appears, other than the one that is registered."""
        known = self.endpoint

        def found() -> bool:
            for socket in self._registry.glob("*-reg.sock"):
                with suppress(grpc.RpcError), channel_to(socket) as channel:
                    stub = make_stub(channel, registration.DESCRIPTOR, "Registration")
                    info = stub.GetInfo(registration.InfoRequest(), timeout=DEADLINE_S)
                    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
                    if Path(info.endpoint) == known:
                        continue
                    self.endpoint, self.services = Path(info.endpoint), info.supported_versions
                    stub.NotifyRegistrationStatus(
                        registration.RegistrationStatus(plugin_registered=True), timeout=DEADLINE_S
                    )
                    return True
            return False

        eventually(found, "a plugin registers")

    def prepare(self, *refs: ClaimRef) -> Any:
        """Call ``NodePrepareResources``; return the entries by the claims' UIDs."""
        return self._call("NodePrepareResources", pb.NodePrepareResourcesRequest, refs)

    def unprepare(self, *refs: ClaimRef) -> Any:
        """Call ``NodeUnprepareResources``; return the entries by the claims' UIDs."""
        return self._call("NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, refs)

    def _call(self, method: str, message: Any, refs: Sequence[ClaimRef]) -> Any:
        request = message(claims=[message_of(each) for each in refs])
        with channel_to(self.endpoint) as channel:
            return getattr(claims_stub(channel), method)(request, timeout=2 * DEADLINE_S).claims

    @contextmanager
    def health(self) -> Iterator[Iterator[Any]]:
        with channel_to(self.endpoint) as channel:
            stub = make_stub(channel, drahealth_pb2.DESCRIPTOR, "DRAResourceHealth")
            stream = stub.NodeWatchResources(
                drahealth_pb2.NodeWatchResourcesRequest(), timeout=DEADLINE_S
            )
            try:
                yield stream
            finally:
                stream.cancel()


def spec_of(folder: Path, ref: ClaimRef) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"gpu-turnstile-claim-{ref.uid}.json").read_text())
    return found


def message_of(ref: ClaimRef) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name)


def claims_stub(channel: grpc.Channel) -> SimpleNamespace:
    return make_stub(channel, pb.DESCRIPTOR, "DRAPlugin")


def channel_to(socket: Path) -> grpc.Channel:
    """A connection that knows nothing of earlier ones."""
    return grpc.insecure_channel(
        f"unix:{socket}",
        options=(("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)),
    )
