"""The device plugin's gRPC server: translates messages and calls the allocator."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import grpc

from agent.allocator.allocator import Allocator
from agent.allocator.slots import DeviceTable
from agent.errors import KubeletReplaced, Refusal
from agent.holdings.edits import ContainerEdits
from agent.kubelet.device_list import HealthFeed, devices
from common.grpc_services import add_service
from common.kubelet_api import deviceplugin_pb2 as api
from contract.resource import Resource

log = logging.getLogger(__name__)

OPTIONS = api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

# ListAndWatch occupies one thread while the kubelet is connected (two while it reconnects).
# PreStartContainer calls come from one pod worker per pod, 110 on a node by default, and each may
# wait for the kubelet's checkpoint. Threads are made when needed.
_THREADS = 128
_MESSAGE_BYTES = 64 * 1024 * 1024

BURST = 40
"""Refusals that are returned without delay."""
PER_SECOND = 40.0
"""Refusals per second in the long run."""
LONGEST_SECONDS = 0.5
"""The longest delay of a refusal."""


class DevicePluginService:
    """One resource of the device plugin API, v1beta1."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        resource: Resource,
        table: DeviceTable,
        calls: Allocator,
        health_feed: HealthFeed | None = None,
        numa: bool = False,
        before_refusal: Callable[[], object] = lambda: None,
    ) -> None:
        """Serve *resource* from *table*.

        With *numa*, devices have the NUMA node of their card (K23). *before_refusal* is called
        before one of the kubelet's serial calls is refused, and may wait.
        """
        self._numa = numa
        self.resource = resource
        self._table = table
        self._calls = calls
        self._health_feed = health_feed or HealthFeed()
        self._before_refusal = before_refusal
        self._last_list: tuple[frozenset[str], api.ListAndWatchResponse | None] = frozenset(), None
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self.streams = 0
        """How many streams have begun."""
        self._open: set[int] = set()
        self._oldest = 0  # the oldest stream that may stay open
        self._hidden = False
        self._listed: frozenset[str] | None = None
        self._pass = threading.Event()
        self._pass.set()
        self.held = 0
        """How many calls of the kubelet wait for :meth:`release` while it admits a pod."""
        self.on_stream_end: Callable[[], None] = lambda: None
        """Called when the kubelet ends the stream of the newest registration (K18)."""

    @property
    def streaming(self) -> bool:
        """Whether the newest stream is still open."""
        return self.streams in self._open

    def wait_streamed(self, before: int, seconds: float) -> bool:
        """Wait until more than *before* streams have begun; return whether that happened."""
        with self._changed:
            return self._changed.wait_for(lambda: self.streams > before, max(seconds, 0))

    def hold(self) -> None:
        """Let new calls wait: the kubelet admits no other pod meanwhile."""
        self._pass.clear()

    def release(self) -> None:
        """Continue the held calls."""
        self._pass.set()

    def _wait_to_pass(self) -> None:
        if not self._pass.is_set():
            with self._changed:
                self.held += 1
            self._pass.wait()
            with self._changed:
                self.held -= 1

    def set_hidden(self, *, hidden: bool) -> None:
        """List every device as Unhealthy, or again by the health of its card."""
        self._hidden = hidden
        self._health_feed.wake()

    def _unhealthy(self) -> frozenset[str]:
        """Return the UUIDs of the cards to be listed as unhealthy."""
        if self._hidden:
            return frozenset(card.uuid for card in self._table.inventory.cards)
        return self._health_feed.unhealthy()

    def wait_listed(self, seconds: float) -> bool:
        """Wait until the present list has been sent; return whether that happened."""
        with self._changed:
            return self._changed.wait_for(lambda: self._listed == self._unhealthy(), seconds)

    def end_streams(self) -> None:
        """End the kubelet's streams: all but the newest, which is that of the next proxy."""
        self._oldest = self.streams
        self._health_feed.wake()

    def end(self) -> None:
        """End the streams, so that the server can stop at once."""
        self._ended.set()
        self.release()
        self._health_feed.wake()

    def GetDevicePluginOptions(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        """Return the optional calls that the kubelet should make."""
        return OPTIONS

    def ListAndWatch(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        """List every slot, and send the whole list again whenever a card's health changes."""
        disconnected = threading.Event()
        with self._changed:
            self.streams += 1
            number = self.streams
            self._open.add(number)
            self._changed.notify_all()

        def is_over() -> bool:
            return self._ended.is_set() or disconnected.is_set() or number < self._oldest

        def ended() -> None:
            disconnected.set()
            with self._changed:
                self._open.discard(number)
                newest = number == self.streams
            self._health_feed.wake()
            if newest and not self._ended.is_set():
                self.on_stream_end()

        if not context.add_callback(ended):
            ended()
            return  # the call has already ended
        while not is_over():
            shown = self._unhealthy()
            yield self._list(shown)
            with self._changed:
                self._listed = shown
                self._changed.notify_all()
            self._wait_for_change(shown, is_over)

    def _wait_for_change(self, shown: frozenset[str], is_over: Callable[[], bool]) -> None:
        self._health_feed.wait_for(lambda: is_over() or self._unhealthy() != shown)

    def _list(self, unhealthy: frozenset[str]) -> api.ListAndWatchResponse:
        """Make the list, or return the last one if it is the same: pods fail until it is sent."""
        for_unhealthy, made = self._last_list
        if made is None or for_unhealthy != unhealthy:
            made = api.ListAndWatchResponse(
                devices=devices(self._table, self.resource, unhealthy, numa=self._numa)
            )
            self._last_list = unhealthy, made
        return made

    def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        """Resolve the target and choose its slots."""
        self._wait_to_pass()
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
        """Translate device IDs into devices, environment and mounts."""
        self._wait_to_pass()
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
        """Verify the container before it starts."""
        try:
            self._calls.prestart(self.resource, request.devices_ids)
        except Exception as error:  # noqa: BLE001 -- the edge: see _abort
            self._abort(context, error, at_once=True)  # these calls are parallel: no need to pace
        return api.PreStartContainerResponse()

    def _abort(
        self, context: grpc.ServicerContext, error: Exception, *, at_once: bool = False
    ) -> NoReturn:
        """End a call with an error: a refusal with its text, any other error with a fixed one.

        The text appears in the pod's status (fact K9), where its author reads it. A defect of the
        agent must fail this one call, not the server, and must not show internals.
        """
        if isinstance(error, Refusal):
            if not at_once:
                self._before_refusal()
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"gpu-turnstile: {error}")
        if isinstance(error, KubeletReplaced):
            context.abort(grpc.StatusCode.ABORTED, f"gpu-turnstile: {error}")
        log.error("call failed", extra={"resource": str(self.resource)}, exc_info=error)
        context.abort(
            grpc.StatusCode.INTERNAL,
            "gpu-turnstile failed on this node: see its log; the pod can be created again",
        )


def _encode(edits: ContainerEdits) -> api.ContainerAllocateResponse:
    # "m" would allow a container to make device nodes, which no program needs for an existing card.
    # Runtimes allow it for all devices by default; a runtime that forbids it is not overruled.
    return api.ContainerAllocateResponse(
        envs=dict(edits.envs),
        devices=[
            api.DeviceSpec(container_path=path, host_path=path, permissions="rw")
            for path in edits.devices
        ],
        mounts=[
            api.Mount(
                container_path=mount.container, host_path=mount.host, read_only=mount.read_only
            )
            for mount in edits.mounts
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in edits.cdi],
    )


class RefusalPace:
    """Limits the rate of refusals: a burst without delay, then a fixed number per second.

    A controller may create a new pod for each refused one, and the kubelet admits pods one at a
    time. A short delay slows such a loop down, and costs a single refused pod nothing. Safe to
    share between threads.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with a full burst; *clock* returns monotonic seconds."""
        self._clock = clock
        self._burst = BURST / PER_SECOND
        self._lock = threading.Lock()
        self._next = clock() - self._burst  # a token bucket that is full

    def delay(self) -> float:
        """Count a refusal, and return the seconds to wait before it is returned."""
        now = self._clock()
        with self._lock:
            self._next = max(self._next, now - self._burst) + 1 / PER_SECOND
            return min(max(self._next - now, 0.0), LONGEST_SECONDS)


class PluginServer:
    """A gRPC server for one resource on one unix socket."""

    def __init__(self, service: DevicePluginService, socket: Path) -> None:
        """Bind and serve.

        The socket file of an earlier process is removed first.

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
        add_service(self._server, api.DESCRIPTOR, "DevicePlugin", service)
        try:
            self._server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise OSError(f"cannot bind {socket}: {error}") from error
        self._server.start()

    def stop(self, *, within: float = 1.0) -> None:
        """End the streams, wait *within* so many seconds for calls in flight, then stop."""
        self.service.end()
        self._server.stop(within).wait(within + 1)
