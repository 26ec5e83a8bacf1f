"""PodResources v1 ``List`` on its own socket (K3, K4, K5, K8, K16)."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc

from common.kubelet_api import podresources_pb2 as pb
from common.kubelet_api import podresources_pb2_grpc as pb_grpc
from contract.demand import ContainerKind
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.pods import Pod
from simulator.kubelet.ratelimit import TokenBucket
from simulator.kubelet.sockets import SocketServer

RATE = 100.0
BURST = 10
_POLL_S = 0.05

Lister = Callable[[], Iterable[tuple[Pod, PodHoldings]]]
"""Gives the pods to list and what they hold; frees what ended pods held, as the real one does."""


def describe(listed: Iterable[tuple[Pod, PodHoldings]]) -> Iterator[pb.PodResources]:
    """Write each pod without its ordinary init containers (K4), one entry a device (K16)."""
    for pod, holdings in listed:
        yield pb.PodResources(
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


class PodResourcesServer(pb_grpc.PodResourcesListerServicer):
    """Serves ``List``, or misbehaves on request.

    Args:
        rate, burst: the limit (K5).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        socket: Path,
        lister: Lister,
        *,
        rate: float = RATE,
        burst: int = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lister = lister
        self._bucket = TokenBucket(rate=rate, burst=burst, clock=clock)
        self._lock = threading.Lock()
        self._socket = socket
        self._server: SocketServer | None = None
        self._stopped = threading.Event()
        self._hanging = False
        self._denying = False

    def start(self) -> None:
        """Listen; a stale socket is replaced."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        server = SocketServer(self._socket, name="podresources", threads=32)
        pb_grpc.add_PodResourcesListerServicer_to_server(self, server.grpc)
        server.start()
        self._server = server

    def stop(self, *, leave_socket: bool = False) -> None:
        """Stop listening; calls that hang end."""
        self._stopped.set()
        if self._server is not None:
            self._server.stop(leave_socket=leave_socket)

    def hang(self, on: bool = True) -> None:  # noqa: FBT001, FBT002 - a switch
        """Leave calls without an answer."""
        self._hanging = on

    def deny(self, on: bool = True) -> None:  # noqa: FBT001, FBT002 - a switch
        """Answer ``PERMISSION_DENIED``.

        File permissions would do where tests do not run as root.
        """
        self._denying = on

    def List(  # noqa: N802 - the name is the protocol's
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002 - empty
        context: grpc.ServicerContext,
    ) -> pb.ListPodResourcesResponse:
        """Answer with every pod and what its containers hold."""
        while self._hanging and context.is_active() and not self._stopped.wait(_POLL_S):
            pass
        if self._stopped.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet is stopping")
        if self._denying:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "permission denied")
        with self._lock:
            allowed = self._bucket.allow()
        if not allowed:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return pb.ListPodResourcesResponse(pod_resources=describe(self._lister()))
