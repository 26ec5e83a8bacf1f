"""The registration service's gRPC server: translates messages and calls the manager.

It listens on a socket that only ``socket_server`` can reach, which also identifies the peers.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from agent.enforcement.vcuda.api import vcuda_pb2 as api
from agent.enforcement.vcuda.claims import ClaimedIdentity, Forbidden, NotYet
from agent.errors import EnforcementError, Unavailable
from common.grpc_services import add_service

log = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", 1),
    ("grpc.so_reuseport", 0),
)


Register = Callable[[str, ClaimedIdentity], None]
"""Registers the container behind a connection."""

# The errors that a container gets: nothing about the node or about other containers.
_REFUSALS: dict[type[Exception], tuple[grpc.StatusCode, str]] = {
    Forbidden: (
        grpc.StatusCode.PERMISSION_DENIED,
        "this is not the container that these limits are for",
    ),
    NotYet: (
        grpc.StatusCode.FAILED_PRECONDITION,
        "the limits of this container are not known yet",
    ),
    Unavailable: (
        grpc.StatusCode.UNAVAILABLE,
        "the node's container runtime does not respond",
    ),
    EnforcementError: (
        grpc.StatusCode.UNAVAILABLE,
        "the limits of this container cannot be written",
    ),
}


class VcudaService:
    """The service that vcuda-controller's client calls."""

    def __init__(self, register: Register) -> None:
        self._register = register

    def RegisterVDevice(
        self, request: api.VDeviceRequest, context: grpc.ServicerContext
    ) -> api.VDeviceResponse:
        """Register."""
        claims = ClaimedIdentity(
            request.bus_id, request.pod_uid, request.container_name, request.container_id
        )
        try:
            self._register(context.peer(), claims)
        except tuple(_REFUSALS) as error:
            context.abort(*next(_REFUSALS[each] for each in _REFUSALS if isinstance(error, each)))
        except Exception:
            log.exception("unexpected error in a registration")
            context.abort(grpc.StatusCode.INTERNAL, "internal error")
        return api.VDeviceResponse()


class VcudaServer:
    """The server on its private socket."""

    def __init__(self, register: Register, socket: Path, *, threads: int) -> None:
        """Bind and serve; the socket's folder is made, accessible only to root.

        *threads* must be the greatest number of connections: an incomplete message blocks a thread.

        Raises:
            OSError: the socket cannot be bound.
        """
        socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        socket.parent.chmod(0o700)
        socket.unlink(missing_ok=True)
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="vcuda"), options=_OPTIONS
        )
        add_service(self._server, api.DESCRIPTOR, "VCUDAService", VcudaService(register))
        try:
            self._server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise OSError(f"cannot bind {socket}: {error}") from error
        self._server.start()

    def stop(self, *, within: float = 1.0) -> None:
        """Wait *within* so many seconds for calls in flight, then stop."""
        self._server.stop(within).wait(within + 1)
