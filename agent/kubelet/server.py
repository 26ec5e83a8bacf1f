"""The device plugin's gRPC server: messages in, allocator, messages out."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, Protocol

import grpc

from agent.allocator.grants import ContainerEdits
from agent.allocator.slots import DeviceTable
from agent.errors import Refusal
from agent.kubelet.device_list import HealthFeed, devices
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import deviceplugin_pb2_grpc as rpc
from contract.resource import Resource

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
"""A kubelet's socket, in its device plugin directory."""
OPTIONS = api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

# ListAndWatch keeps one thread for as long as the kubelet is connected (two while it
# reconnects). PreStartContainer calls come from as many pod workers as there are pods, 110 on
# a node by default, and each may wait for the kubelet's record. Threads are made when needed.
_THREADS = 128
_MESSAGE_BYTES = 64 * 1024 * 1024

BURST = 40
"""So many refusals are answered at once."""
PER_SECOND = 40.0
"""So many are answered in the long run."""
LONGEST_SECONDS = 0.5


class DevicePluginCalls(Protocol):
    """What answers the calls."""

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Choose places."""

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        """Translate device IDs, and assign their places."""

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove a container."""


class DevicePluginService(rpc.DevicePluginServicer):
    """One resource of the device plugin API, v1beta1."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        resource: Resource,
        table: DeviceTable,
        calls: DevicePluginCalls,
        health_feed: HealthFeed | None = None,
        numa: bool = False,
        before_refusal: Callable[[], object] = lambda: None,
    ) -> None:
        """Serve *resource* from *table*.

        With *numa*, places say on which NUMA node they are (K23). *before_refusal* waits before one
        of the kubelet's serial calls is refused.
        """
        self._numa = numa
        self.resource = resource
        self._table = table
        self._calls = calls
        self._health_feed = health_feed or HealthFeed()
        self._before_refusal = before_refusal
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self.streams = 0
        """How many there have been."""
        self._open: set[int] = set()
        self.on_cut: Callable[[], None] = lambda: None
        """Told when the kubelet ends the stream of the newest registration (K18)."""

    @property
    def streaming(self) -> bool:
        """Whether the newest stream is still open."""
        return self.streams in self._open

    def wait_streamed(self, before: int, seconds: float) -> bool:
        """Wait until a stream has begun besides the first *before*; tell whether one has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.streams > before, max(seconds, 0))

    def end(self) -> None:
        """End the streams, so that the server can stop at once."""
        self._ended.set()
        self._health_feed.wake()

    def GetDevicePluginOptions(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        """Return which optional calls are wanted."""
        return OPTIONS

    def ListAndWatch(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        """List every place, and all of them again whenever a card's health has changed."""
        gone = threading.Event()
        with self._changed:
            self.streams += 1
            number = self.streams
            self._open.add(number)
            self._changed.notify_all()

        def leave() -> bool:
            return self._ended.is_set() or gone.is_set()

        def left() -> None:
            gone.set()
            with self._changed:
                self._open.discard(number)
                newest = number == self.streams
            self._health_feed.wake()
            if newest and not self._ended.is_set():
                self.on_cut()

        if not context.add_callback(left):
            left()
            return  # it had ended before
        unhealthy: frozenset[str] | None = self._health_feed.unhealthy()
        while unhealthy is not None:
            yield api.ListAndWatchResponse(
                devices=devices(self._table, self.resource, unhealthy, numa=self._numa)
            )
            unhealthy = self._health_feed.after(unhealthy, leave=leave)

    def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        """Settle who asks and choose its places."""
        try:
            return api.PreferredAllocationResponse(
                container_responses=[
                    api.ContainerPreferredAllocationResponse(
                        deviceIDs=self._calls.prefer(
                            self.resource,
                            each.available_deviceIDs,
                            each.must_include_deviceIDs,
                            each.allocation_size,
                        )
                    )
                    for each in request.container_requests
                ]
            )
        except Exception as error:  # noqa: BLE001 -- the edge: see _abort
            self._abort(context, error)

    def Allocate(
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        """Translate IDs into what the container finds."""
        try:
            return api.AllocateResponse(
                container_responses=[
                    _encode(self._calls.allocate(self.resource, each.devices_ids))
                    for each in request.container_requests
                ]
            )
        except Exception as error:  # noqa: BLE001 -- the edge: see _abort
            self._abort(context, error)

    def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        """Prove the container before it starts."""
        try:
            self._calls.prestart(self.resource, request.devices_ids)
        except Exception as error:  # noqa: BLE001 -- the edge: see _abort
            self._abort(context, error, at_once=True)  # side by side: the kubelet paces them itself
        return api.PreStartContainerResponse()

    def _abort(
        self, context: grpc.ServicerContext, error: Exception, *, at_once: bool = False
    ) -> NoReturn:
        """End a call with an error: a refusal in its own words, anything else without ours.

        The text ends up in the pod's status (fact K9), where its author reads it. A fault of
        ours must fail this one call, not the server, and must not show internals.
        """
        if isinstance(error, Refusal):
            if not at_once:
                self._before_refusal()
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"gpu-turnstile: {error}")
        log.error("call failed", extra={"resource": str(self.resource)}, exc_info=error)
        context.abort(
            grpc.StatusCode.INTERNAL,
            "gpu-turnstile failed on this node, its log says why; the pod can be created again",
        )


def _encode(answer: ContainerEdits) -> api.ContainerAllocateResponse:
    # "m" would let a container make device nodes, which no program needs for a card that is
    # there. Runtimes allow it for all devices by default; whoever forbids it is not overruled.
    return api.ContainerAllocateResponse(
        envs=dict(answer.envs),
        devices=[
            api.DeviceSpec(container_path=path, host_path=path, permissions="rw")
            for path in answer.devices
        ],
        mounts=[
            api.Mount(
                container_path=mount.container, host_path=mount.host, read_only=mount.read_only
            )
            for mount in answer.mounts
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in answer.cdi],
    )


class RefusalPace:
    """How fast refusals are answered: a burst at once, then so many a second.

    A controller may make a new pod for each one that is refused, and the kubelet admits pods one at
    a time. A refusal that is answered a little later slows such a loop down, and costs a single
    refused pod nothing. Safe to share between threads.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with a whole burst; *clock* gives seconds, monotonic."""
        self._clock = clock
        self._burst = BURST / PER_SECOND
        self._lock = threading.Lock()
        self._next = clock() - self._burst  # when the bucket was empty last, had it been used

    def delay(self) -> float:
        """Count a refusal, and return after how many seconds it is to be answered."""
        now = self._clock()
        with self._lock:
            self._next = max(self._next, now - self._burst) + 1 / PER_SECOND
            return min(max(self._next - now, 0.0), LONGEST_SECONDS)


class PluginServer:
    """A gRPC server for one resource on one unix socket."""

    def __init__(self, service: DevicePluginService, socket: Path) -> None:
        """Bind and serve.

        A socket file left by a process that died is in the way and is removed.

        Raises:
            OSError: the socket cannot be bound.
        """
        socket.unlink(missing_ok=True)
        self.socket = socket
        self.service = service
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix=socket.stem),
            options=(
                ("grpc.max_receive_message_length", _MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ),
        )
        rpc.add_DevicePluginServicer_to_server(service, self._server)
        try:
            self._server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise OSError(f"cannot bind {socket}: {error}") from error
        self._server.start()

    def stop(self, *, within: float = 1.0) -> None:
        """End streams, let calls in flight finish for a while, then stop."""
        self.service.end()
        self._server.stop(within).wait(within + 1)
