"""PodResources v1 ``List`` on its own socket (K3, K4, K5, K8, K16)."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc

from common.kubelet_api import podresources_pb2 as pb
from contract.demand import ContainerKind
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.pods import Pod
from simulator.kubelet.sockets import Misbehavior, SocketServer

RATE = 100.0
BURST = 10

Lister = Callable[[], Iterable[tuple[Pod, PodHoldings]]]
"""Returns the pods to list with their devices; frees those of ended pods, as the kubelet does."""


def describe(pod: Pod, holdings: PodHoldings) -> pb.ListPodResourcesResponse:
    """Return one pod without ordinary init containers (K4), one entry for each device (K16)."""
    entry = pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pb.ContainerResources(
                name=container.name,
                devices=[
                    pb.ContainerDevices(resource_name=resource, device_ids=[id_])
                    for resource, holding in holdings.get(container.name, {}).items()
                    for id_ in holding.ids
                ],
            )
            for container in pod.containers
            if container.kind is not ContainerKind.INIT
        ],
    )
    return pb.ListPodResourcesResponse(pod_resources=[entry])


class TokenBucket:
    """Allows *rate* calls a second, and up to *burst* at once (K5). Not safe between threads.

    Args:
        rate: tokens a second.
        burst: most tokens at a time.
        clock: monotonic seconds.
    """

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()

    def allow(self) -> bool:
        """Take a token; return whether there was one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class PodResourcesServer:
    """Serves ``List``.

    Args:
        rate, burst: the limit (K5).
        misbehavior: faults for callers.
    """

    def __init__(
        self,
        socket: Path,
        lister: Lister,
        *,
        rate: float = RATE,
        burst: int = BURST,
        misbehavior: Misbehavior,
    ) -> None:
        self._lister = lister
        self._bucket = TokenBucket(rate=rate, burst=burst, clock=time.monotonic)
        self._lock = threading.Lock()
        self._socket = socket
        self._server: SocketServer | None = None
        self._misbehavior = misbehavior
        self._encoded: dict[str, tuple[PodHoldings, bytes]] = {}

    def start(self) -> None:
        """Listen; replace a stale socket."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        server = SocketServer(self._socket, name="podresources", threads=32)
        handlers = {"List": grpc.unary_unary_rpc_method_handler(self._list)}
        server.grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
        )
        server.start()
        self._server = server

    def stop(self, *, leave_socket: bool = False) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.stop(leave_socket=leave_socket)

    def _list(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        """Return every pod with the devices of its containers."""
        self._misbehavior.reach_in_call(context, "List")
        with self._lock:
            allowed = self._bucket.allow()
        if not allowed:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return b"".join(self._entries())

    def _entries(self) -> Iterator[bytes]:
        """Encode each pod again only if its devices have changed, which is rare.

        Protobuf merges concatenated messages, so the response is the joined entries.
        """
        before, now = self._encoded, dict[str, tuple[PodHoldings, bytes]]()
        for pod, holdings in self._lister():
            known = before.get(pod.uid)
            if known is None or known[0] != holdings:
                known = holdings, describe(pod, holdings).SerializeToString()
            now[pod.uid] = known
            yield known[1]
        self._encoded = now
