"""Registering with the kubelet, and noticing when it has restarted or cut us off (K11, K18).

A restarting kubelet deletes the sockets in its plugin directory and makes a new
``kubelet.sock``; it knows a plugin again only after a new registration. And when the stream of
an earlier registration breaks, the kubelet drops whoever is registered under that resource name
at that moment (K18): that is noticed by the end of our own stream, and registered again at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from agent.kubelet.api import deviceplugin_pb2 as api
from agent.kubelet.api import deviceplugin_pb2_grpc as rpc
from agent.kubelet.directory_watch import LOOK_AGAIN_SECONDS, identity, watch
from agent.kubelet.endpoints import Endpoint, EndpointServers, Served
from agent.kubelet.server import OPTIONS
from common.backoff import Backoff

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
_VERSION = "v1beta1"
_REGISTER_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_BACKOFF_SECONDS = 0.05, 1.0
_PEEK_SECONDS = 0.02
# A kubelet that has registered a plugin asks for its devices at once.
_STREAM_SECONDS = 2.0


class Registrar:
    """Keeps the endpoints served and registered while the kubelet comes and goes."""

    def __init__(
        self,
        *,
        plugin_dir: Path,
        endpoints: Sequence[Endpoint],
        on_new_kubelet: Callable[[], None] = lambda: None,
        on_gap: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Prepare; nothing is served yet.

        Args:
            plugin_dir: the kubelet's device plugin directory.
            endpoints: what to serve.
            on_new_kubelet: told, before its next call can be expected, of a registration with
                another kubelet than the last: it tries every pod anew.
            on_gap: told, after a registration, for how many seconds a kubelet was there and did
                not know this agent.
        """
        self._dir = plugin_dir
        self._endpoints = endpoints
        self._on_new_kubelet = on_new_kubelet
        self._on_gap = on_gap
        self._servers = EndpointServers(plugin_dir, endpoints, on_cut=self.renew)
        self._known_to: tuple[int, ...] | None = None
        self._last_known_to: tuple[int, ...] | None = None
        self._missing_since: float | None = None
        self._registered = threading.Event()
        self._woken = threading.Event()
        self._suspended = False
        self._registering = threading.Lock()
        self._covered = False  # another agent is known to the kubelet

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there now knows all endpoints."""
        return self._registered.is_set()

    @property
    def kubelet(self) -> tuple[int, ...] | None:
        """The kubelet that was registered with last, by its socket's file."""
        return self._last_known_to

    def follow(self, kubelet: Sequence[int] | None) -> None:
        """Take *kubelet* for known: a predecessor was registered with it."""
        self._last_known_to = tuple(kubelet) if kubelet is not None else None

    @property
    def sockets(self) -> list[Path]:
        """Every socket that this agent has listened on."""
        return list(self._servers.sockets)

    def missing(self, since: float | None) -> None:
        """Return since when no agent has been known to the kubelet; ``None`` where one is."""
        self._missing_since, self._covered = since, since is None

    def wait_registered(self, seconds: float) -> bool:
        """Wait until all endpoints are registered; tell whether they are."""
        return self._registered.wait(seconds)

    def listen(self) -> None:
        """Serve the endpoints, without telling the kubelet.

        Raises:
            OSError: a socket cannot be made.
        """
        if not self._servers.complete:
            self._servers.serve()

    def warm_up(self) -> None:
        """Ask our own servers once: a first call takes a tenth of a second longer than others."""
        for each in self._servers.served:
            with _channel(each.server.socket) as channel, suppress(grpc.RpcError):
                stub = rpc.DevicePluginStub(channel)
                stub.GetDevicePluginOptions(api.Empty(), timeout=_REGISTER_SECONDS)

    def renew(self) -> None:
        """Register again at once: the kubelet may have forgotten us."""
        self._lose()
        self._woken.set()

    def suspend(self) -> None:
        """Leave registering to a successor, until ``resume``.

        A registration under way is given up first: made after the successor's, it would take the
        kubelet back to an agent that is about to end.
        """
        self._suspended = True
        with self._registering:
            return

    def resume(self) -> None:
        """Register again, and take care of it from now on."""
        self._suspended = False
        self.renew()

    def run(self, stop: threading.Event) -> None:
        """Serve and register, again whenever the kubelet restarts or forgets, until *stop*."""
        watcher = threading.Thread(
            target=watch,
            args=(self._dir, self._woken.set, stop),
            name="plugin-directory",
            daemon=True,
        )
        try:
            self._ensure(stop)
            watcher.start()  # only now: it imports a library
            while not stop.is_set():
                self._woken.wait(LOOK_AGAIN_SECONDS)
                self._woken.clear()
                self._ensure(stop)
        finally:
            self._servers.stop()
            if watcher.ident is not None:
                watcher.join(LOOK_AGAIN_SECONDS)

    def _lose(self) -> None:
        self._known_to = None
        self._registered.clear()

    # --- registering -------------------------------------------------------------------

    def _ensure(self, stop: threading.Event) -> None:
        """Serve and register if this kubelet does not know us or a socket of ours is gone."""
        retries = Backoff(*_BACKOFF_SECONDS)
        while not stop.is_set():
            with self._registering:
                kubelet = None if self._suspended else self._to_register_with()
                if kubelet is None:
                    return
                try:
                    self._serve_and_register(kubelet)
                except (OSError, grpc.RpcError) as error:
                    if self._suspended:
                        return
                    log.warning("registration failed", extra={"reason": _reason(error)})
                else:
                    continue
            if self._replaced(kubelet, within=retries.next(), stop=stop):
                retries.reset()

    def _to_register_with(self) -> tuple[int, int, int] | None:
        """Return the kubelet that does not know us; ``None`` where it does, or none is there."""
        if not self._dir.is_dir():
            if self._known_to is not None or self._missing_since is None:
                log.info("waiting for the plugin directory", extra={"path": str(self._dir)})
            self._lose()
            self._missing_since = time.monotonic()
            return None
        kubelet = identity(self._dir / KUBELET_SOCKET)
        if kubelet is None:
            self._lose()
            self._missing_since = None
            return None  # not started yet: its socket's appearance is the next change
        return None if self._servers.complete and kubelet == self._known_to else kubelet

    def _serve_and_register(self, kubelet: tuple[int, int, int]) -> None:
        """Serve what is not served, and register it.

        Raises:
            OSError: a socket cannot be made, the kubelet has been replaced, or has forgotten us.
            grpc.RpcError: it refused, or did not answer in time.
        """
        self._lose()
        if self._missing_since is None:
            self._missing_since = time.monotonic()
        if not self._servers.complete:
            if kubelet != self._last_known_to:
                self._servers.stop()  # their kubelet has died
            self._servers.serve()
        # Serving takes a moment, in which a kubelet may have come instead of a dead one: to be
        # registered with the one and take it for the other would mean to do it all again, and
        # to cut off calls that it makes already.
        there = identity(self._dir / KUBELET_SOCKET)
        if there is not None:
            self._register_all(there)

    def _replaced(
        self, kubelet: tuple[int, int, int] | None, *, within: float, stop: threading.Event
    ) -> bool:
        """Wait before the next try, but not once another kubelet has come; tell whether one has.

        The socket of a kubelet that has died refuses us for as long as its successor takes to
        start. That one admits its node's pods half a second after it can be registered with.
        """
        until = time.monotonic() + within
        while (rest := until - time.monotonic()) > 0 and not stop.wait(min(rest, _PEEK_SECONDS)):
            if identity(self._dir / KUBELET_SOCKET) not in (kubelet, None):
                return True
        return False

    def _register_all(self, kubelet: tuple[int, int, int]) -> None:
        """Register every endpoint, and wait until the kubelet has asked for its devices.

        Raises:
            OSError: the kubelet has been replaced, or has forgotten us already.
            grpc.RpcError: it refused, or did not answer in time.
        """
        streams = [each.service.streams for each in self._servers.served]
        for each in self._servers.served:
            self._register(each, kubelet)
        deadline = time.monotonic() + _STREAM_SECONDS
        for each, before in zip(self._servers.served, streams, strict=True):
            if not each.service.wait_streamed(before, deadline - time.monotonic()):
                raise OSError("the kubelet does not ask for our devices")
        new, self._known_to = kubelet != self._last_known_to, kubelet
        self._last_known_to = kubelet
        self._registered.set()
        for each in self._servers.served:
            if not each.service.streaming:  # cut in between: nobody would tell us again
                self._lose()
                return
        since, self._missing_since = self._missing_since, None
        self._on_gap(0.0 if since is None or self._covered else time.monotonic() - since)
        self._covered = False
        log.info(
            "registered",
            extra={"resources": [each.resource_name for each in self._endpoints]},
        )
        if new:
            self._on_new_kubelet()

    def _register(self, served: Served, kubelet: tuple[int, int, int]) -> None:
        """Register one endpoint with this kubelet.

        Raises:
            OSError: it has been replaced meanwhile, or has removed our sockets: it would dial
                one that is gone until it gave up.
            grpc.RpcError: it refused, or did not answer in time.
        """
        with _channel(self._dir / KUBELET_SOCKET) as channel:
            call = rpc.RegistrationStub(channel).Register.future(
                api.RegisterRequest(
                    version=_VERSION,
                    endpoint=served.server.socket.name,
                    resource_name=served.endpoint.resource_name,
                    options=OPTIONS,
                ),
                timeout=_REGISTER_SECONDS,
            )
            done = threading.Event()
            call.add_done_callback(lambda _call: done.set())
            while not done.wait(_LOOK_SECONDS):
                if not self._servers.complete:
                    call.cancel()
                    raise OSError("the kubelet has removed our sockets")
                if identity(self._dir / KUBELET_SOCKET) != kubelet:
                    call.cancel()
                    raise OSError("the kubelet was replaced")
                if self._suspended:
                    call.cancel()
                    raise OSError("registering is left to a successor")
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
