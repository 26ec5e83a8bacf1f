"""The device plugins of the node: registration and calls, over real unix sockets (K11)."""

import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import grpc

from common.grpc_services import add_service, make_stub
from common.kubelet_api import deviceplugin_pb2 as pb
from simulator.kubelet.devices import PluginOptions
from simulator.kubelet.errors import PluginCallFailed, TurnedAway
from simulator.kubelet.numa import Device
from simulator.kubelet.pods import is_extended
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.sockets import Misbehavior, SocketServer, in_go_words

_log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
_API_VERSION = "v1beta1"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")

_DIAL_S = 10.0
PRE_START_S = 30.0
"""Timeout of PreStartContainer (K10)."""
_CALL_S = 120.0
"""The real kubelet has no timeout here; a simulation must end."""


@contextmanager
def _translated(prefix: str = "") -> Iterator[None]:
    """Convert gRPC's errors to ours, with grpc-go's text."""
    try:
        yield
    except grpc.RpcError as error:
        raise PluginCallFailed(prefix + in_go_words(error)) from error
    except ValueError as error:  # raised by gRPC if the channel is closed
        raise PluginCallFailed(f"{prefix}rpc error: code = Canceled desc = {error}") from error


class PluginListener(Protocol):
    """Receives messages of plugins; called from their threads."""

    def connected(self, resource: str, options: PluginOptions) -> None:
        """Handle a plugin that has registered and can be called."""

    def advertised(self, resource: str, devices: tuple[Device, ...]) -> None:
        """Handle a plugin's list of devices."""

    def disconnected(self, resource: str) -> None:
        """Handle the end of a plugin's stream."""


class PluginClient:
    """One connection to one plugin."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource = resource
        self.socket = socket
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=(
                ("grpc.default_authority", "localhost"),
                # Without a pool of its own, a plugin that returns on the same path would wait for
                # the back-off of its predecessor's broken connection.
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        self._stub = make_stub(self._channel, pb.DESCRIPTOR, "DevicePlugin")

    def connect(self) -> PluginOptions:
        """Dial, and get the plugin's options.

        Raises:
            PluginCallFailed: there is no response.
        """
        # Waiting for the channel to be ready would leave a thread of gRPC's behind that fails
        # when the channel is closed meanwhile; a call that waits ends with the channel.
        with _translated("failed to get device plugin options: "):
            options = self._stub.GetDevicePluginOptions(
                pb.Empty(), timeout=_DIAL_S, wait_for_ready=True
            )
        return PluginOptions(options.pre_start_required, options.get_preferred_allocation_available)

    def watch(self) -> Iterator[tuple[Device, ...]]:
        """Yield each list of devices that the plugin sends, until the stream breaks."""
        try:
            with _translated():
                for response in self._stub.ListAndWatch(pb.Empty()):
                    yield tuple(map(_read_device, response.devices))
        except PluginCallFailed as error:
            _log.info("ListAndWatch ended", extra={"resource": self.resource, "reason": str(error)})

    def prefer(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> tuple[str, ...]:
        """Call GetPreferredAllocation, with exactly one container request (K1).

        Raises:
            CallFailed: in Go's words.
        """
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must_include,
                    allocation_size=size,
                )
            ]
        )
        with _translated():
            response = self._stub.GetPreferredAllocation(request, timeout=_CALL_S)
        responses = response.container_responses
        return tuple(responses[0].deviceIDs) if responses else ()

    def allocate(self, ids: tuple[str, ...]) -> PluginResponse | None:
        """Call Allocate, with exactly one container request (K1); ``None`` if it returns nothing.

        Raises:
            CallFailed: in Go's words.
        """
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
        )
        with _translated():
            response = self._stub.Allocate(request, timeout=_CALL_S)
        responses = response.container_responses
        return responses[0] if responses else None

    def pre_start(self, ids: tuple[str, ...]) -> None:
        """Call PreStartContainer, which returns nothing.

        Raises:
            CallFailed: in Go's words.
        """
        request = pb.PreStartContainerRequest(devices_ids=ids)
        with _translated():
            self._stub.PreStartContainer(request, timeout=PRE_START_S)

    def close(self) -> None:
        """Close the connection; calls in flight fail, a dial ends."""
        self._channel.close()


class Plugins:
    """The registration service, and the registered plugins."""

    def __init__(self, directory: Path, listener: PluginListener, misbehavior: Misbehavior) -> None:
        self._directory = directory
        self._misbehavior = misbehavior
        self._listener = listener
        self._lock = threading.Lock()
        self._clients: dict[str, PluginClient] = {}
        self._connections: set[PluginClient] = set()
        self._threads: set[threading.Thread] = set()
        self._stopped = False
        self._server: SocketServer | None = None

    def start(self) -> None:
        """Remove every socket in the directory and listen on a new ``kubelet.sock`` (K11)."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):  # a plugin may remove its own socket meanwhile
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        server = SocketServer(self._directory / KUBELET_SOCKET, name="registration", threads=8)
        add_service(server.grpc, pb.DESCRIPTOR, "Registration", self)
        server.start()
        self._server = server

    def stop(self, *, leave_socket: bool = False) -> None:
        """Close all connections to plugins and stop listening."""
        with self._lock:
            self._stopped = True
            self._clients.clear()
            connections = list(self._connections)
            threads = list(self._threads)
        for client in connections:
            client.close()
        if self._server is not None:
            self._server.stop(leave_socket=leave_socket)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(1.0)

    def get(self, resource: str) -> PluginClient | None:
        """Return the plugin that serves *resource* now."""
        with self._lock:
            return self._clients.get(resource)

    def Register(  # noqa: N802 - the name is the protocol's
        self, request: pb.RegisterRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        """Register a plugin: connect to it before the response."""
        self._misbehavior.reach_in_call(context, "Register", request.resource_name)
        refusal = _refusal(request)
        if refusal:
            context.abort(grpc.StatusCode.UNKNOWN, refusal)
        # Joined as by Go's filepath.Join: an endpoint may lead elsewhere.
        socket = Path(os.path.normpath(self._directory / request.endpoint.lstrip("/")))
        client = PluginClient(request.resource_name, socket)
        with self._lock:
            stopped = self._stopped
            if not stopped:
                # The stream of the plugin before is not closed. When it breaks, it disconnects the
                # plugin registered then, as in the real kubelet.
                self._clients[client.resource] = client
                self._connections.add(client)
        if stopped:
            client.close()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet is stopping")
        try:
            options = client.connect()
        except PluginCallFailed as error:
            self._drop(client, forget=True)
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        self._listener.connected(client.resource, options)
        thread = threading.Thread(
            target=self._watch, args=(client,), name=f"watch-{client.resource}", daemon=True
        )
        with self._lock:  # stop() joins these threads, so each must have been started
            if not self._stopped:
                self._threads.add(thread)
                thread.start()
        return pb.Empty()

    def _watch(self, client: PluginClient) -> None:
        try:
            self._misbehavior.reach("ListAndWatch", client.resource)
        except TurnedAway:
            return
        try:
            for devices in client.watch():
                if self._stopped:
                    return
                self._misbehavior.reach("devices", client.resource)
                self._listener.advertised(client.resource, devices)
        except TurnedAway as error:
            _log.info("ListAndWatch cut", extra={"reason": str(error)})
        finally:
            with self._lock:
                current = self._clients.pop(client.resource, None)
                stopped = self._stopped
                self._threads.discard(threading.current_thread())
            # As in the real kubelet, the broken stream's own connection stays, and its calls end.
            if current is not None and not stopped:
                self._drop(current)
                self._listener.disconnected(client.resource)

    def _drop(self, client: PluginClient, *, forget: bool = False) -> None:
        with self._lock:
            self._connections.discard(client)
            if forget and self._clients.get(client.resource) is client:
                del self._clients[client.resource]
        client.close()


def _read_device(message: pb.Device) -> Device:
    nodes = tuple(int(node.ID) for node in message.topology.nodes)
    return Device(message.ID, message.health == "Healthy", nodes)


def _refusal(request: pb.RegisterRequest) -> str:
    """Return why a registration is refused; empty if it is not."""
    if request.version != _API_VERSION:
        return (
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{_API_VERSION}"]'
        )
    if not is_extended(request.resource_name) or not _NAME.match(
        request.resource_name.partition("/")[2]
    ):
        return f'the ResourceName "{request.resource_name}" is invalid'
    return ""
