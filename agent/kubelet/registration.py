"""Registering with the kubelet, or with the device plugin proxy, which is a kubelet to us.

A restarting kubelet deletes the sockets in its plugin directory and makes a new
``kubelet.sock``; it knows a plugin again only after a new registration (K11). And when the stream
of an earlier registration breaks, it drops whoever is registered under that resource name at that
moment (K18): that is noticed by the end of our own stream, and registered again at once.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from agent.kubelet.kubelet_instance import DirectoryWatch, identity
from agent.kubelet.server import KUBELET_SOCKET, OPTIONS, DevicePluginService, PluginServer
from common.backoff import Backoff
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

_VERSION = "v1beta1"
_REGISTER_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_BACKOFF_SECONDS = 0.05, 1.0
# A kubelet that has registered a plugin asks for its devices at once.
_STREAM_SECONDS = 2.0

_Kubelet = tuple[int, int, int]
"""A kubelet, by its socket's file."""


class Registrar:
    """Keeps resources served and registered while the kubelet comes and goes.

    Each is served on a socket whose name was never used before: gRPC unlinks a socket's path when
    its server stops, late too, and another server may be listening there by then.
    """

    def __init__(
        self,
        *,
        plugin_dir: Path,
        services: Mapping[str, Callable[[], DevicePluginService]],
        on_gap: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Prepare; nothing is served yet.

        *services* makes the service of each resource, by the name that pods give it: every server
        needs its own.

        *on_gap* is told, after a registration, for how many seconds a ``kubelet.sock`` was seen in
        *plugin_dir* that did not know this agent.
        """
        self._dir = plugin_dir
        self._on_gap = on_gap
        self._services = services
        self._served: dict[str, PluginServer] = {}
        self._watch = DirectoryWatch(plugin_dir)
        self._known_to: _Kubelet | None = None
        self._unknown_since: float | None = None
        self._waiting = False  # for the directory
        self._stopping = threading.Event()

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there now knows all resources."""
        return self._known_to is not None

    @property
    def sockets(self) -> list[Path]:
        """The sockets that are listened on."""
        return [each.socket for each in self._served.values()]

    def run(self) -> None:
        """Serve and register, again whenever the kubelet restarts or forgets, until ``stop``."""
        retries = Backoff(*_BACKOFF_SECONDS)
        try:
            while not self._stopping.is_set():
                kubelet = self._to_register_with()
                if kubelet is None:
                    self._watch.wait()
                elif self._try() or self._replaced(kubelet, within=retries.next()):
                    retries.reset()
        finally:
            self._end_servers()
            self._watch.close()

    def stop(self) -> None:
        """Make ``run`` return; calls in flight finish."""
        self._stopping.set()
        self._watch.wake()

    def _renew(self) -> None:
        """Register again at once: the kubelet may have forgotten us."""
        self._known_to = None
        self._watch.wake()

    # --- serving -----------------------------------------------------------------------

    def _complete(self) -> bool:
        """Return whether every resource is served on a socket that is there."""
        return bool(self._served) and all(each.socket.exists() for each in self._served.values())

    def _serve(self) -> None:
        """Serve every resource on a new socket, and none on an older one any more.

        Raises:
            OSError: a socket cannot be made.
        """
        self._end_servers()
        for name, make in self._services.items():
            service = make()
            service.on_cut = self._renew
            socket = self._dir / f"v{service.resource}-{secrets.token_hex(4)}.sock"
            try:
                self._served[name] = PluginServer(service, socket)
            except OSError:
                self._end_servers()
                raise

    def _end_servers(self) -> None:
        for each in self._served.values():
            each.stop()
        self._served = {}

    # --- registering -------------------------------------------------------------------

    def _to_register_with(self) -> _Kubelet | None:
        """Return the kubelet that does not know us; ``None`` where it does, or none is there."""
        kubelet = identity(self._dir / KUBELET_SOCKET)
        if kubelet is None:
            self._known_to = self._unknown_since = None
            here = self._dir.is_dir()
            if not here and not self._waiting:
                log.info("waiting for the plugin directory", extra={"path": str(self._dir)})
            self._waiting = not here
            return None
        return None if self._complete() and kubelet == self._known_to else kubelet

    def _try(self) -> bool:
        """Serve what is not served, and register it; tell whether that was possible."""
        self._known_to = None
        if self._unknown_since is None:
            self._unknown_since = time.monotonic()
        try:
            if not self._complete():
                self._serve()
            # Serving takes a moment, in which a kubelet may have come instead of a dead one: to
            # be registered with the one and take it for the other would mean to do it all
            # again, and to cut off calls that it makes already.
            kubelet = identity(self._dir / KUBELET_SOCKET)
            if kubelet is not None:
                self._register_all(kubelet)
        except (OSError, grpc.RpcError) as error:
            log.warning("registration failed", extra={"reason": _reason(error)})
            return False
        return True

    def _replaced(self, kubelet: _Kubelet, *, within: float) -> bool:
        """Wait before the next try, but not once another kubelet has come; tell whether one has.

        The socket of a kubelet that has died refuses us for as long as its successor takes to
        start. That one admits its node's pods half a second after it can be registered with.
        """
        until = time.monotonic() + within
        while (rest := until - time.monotonic()) > 0 and not self._stopping.is_set():
            self._watch.wait(rest)
            if identity(self._dir / KUBELET_SOCKET) not in (kubelet, None):
                return True
        return False

    def _register_all(self, kubelet: _Kubelet) -> None:
        """Register every resource, and wait until the kubelet has asked for its devices.

        Raises:
            OSError: the kubelet has been replaced, or has forgotten us already.
            grpc.RpcError: it refused, or did not answer in time.
        """
        served = self._served
        streams = [(each.service, each.service.streams) for each in served.values()]
        for resource_name, server in served.items():
            self._register(resource_name, server, kubelet)
        deadline = time.monotonic() + _STREAM_SECONDS
        for service, before in streams:
            if not service.wait_streamed(before, deadline - time.monotonic()):
                raise OSError("the kubelet does not ask for our devices")
        self._known_to = kubelet
        if not all(service.streaming for service, _ in streams):
            self._known_to = None  # cut in between: nobody would tell us again
            return
        since, self._unknown_since = self._unknown_since, None
        self._on_gap(0.0 if since is None else time.monotonic() - since)
        log.info("registered", extra={"resources": list(served)})

    def _register(self, resource_name: str, server: PluginServer, kubelet: _Kubelet) -> None:
        """Register one resource with this kubelet.

        Raises:
            OSError: it has been replaced meanwhile, or has removed our sockets: it would dial
                one that is gone until it gave up.
            grpc.RpcError: it refused, or did not answer in time.
        """
        with _channel(self._dir / KUBELET_SOCKET) as channel:
            call = rpc.RegistrationStub(channel).Register.future(
                api.RegisterRequest(
                    version=_VERSION,
                    endpoint=server.socket.name,
                    resource_name=resource_name,
                    options=OPTIONS,
                ),
                timeout=_REGISTER_SECONDS,
            )
            done = threading.Event()
            call.add_done_callback(lambda _call: done.set())
            while not done.wait(_LOOK_SECONDS):
                if not self._complete():
                    call.cancel()
                    raise OSError("the kubelet has removed our sockets")
                if identity(self._dir / KUBELET_SOCKET) != kubelet:
                    call.cancel()
                    raise OSError("the kubelet was replaced")
            call.result()


def _channel(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{socket}",
        # A pool that is shared would remember the back-off of a kubelet that has died.
        options=(("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)),
    )


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
