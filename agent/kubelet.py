"""Registering with the kubelet, and noticing when it has restarted (fact K11).

A restarting kubelet deletes the sockets in its plugin directory and makes a new
``kubelet.sock``; it knows a plugin again only after a new registration.
"""

import logging
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import watchfiles

from agent.kubeletapi import deviceplugin_pb2 as api
from agent.kubeletapi import deviceplugin_pb2_grpc as rpc
from agent.server import OPTIONS, DevicePluginService, PluginServer

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
_VERSION = "v1beta1"
_REGISTER_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 0.5
_SETTLE_SECONDS = 0.3
# inotify tells of changes at once; this is how soon one is noticed that it did not tell of,
# such as a directory that was made anew.
_LOOK_AGAIN_MS = 2000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One resource to serve and register.

    Attributes:
        resource_name: the resource as pods name it.
        socket_name: the file name of its socket in the plugin directory.
        service: makes the service; every server needs its own.
    """

    resource_name: str
    socket_name: str
    service: Callable[[], DevicePluginService]


class Registrar:
    """Keeps the endpoints served and registered while the kubelet comes and goes."""

    def __init__(
        self,
        *,
        plugin_dir: Path,
        endpoints: Sequence[Endpoint],
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing is served yet.

        Args:
            plugin_dir: the kubelet's device plugin directory.
            endpoints: what to serve.
            on_registered: told after every full registration, before the kubelet's next call
                can be expected.
        """
        self._dir = plugin_dir
        self._endpoints = endpoints
        self._on_registered = on_registered
        self._servers: list[PluginServer] = []
        self._registered_with: tuple[int, int, int] | None = None

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there now knows all endpoints."""
        return self._registered_with is not None

    def run(self, stop: threading.Event) -> None:
        """Serve and register, again whenever the kubelet restarts, until *stop*."""
        try:
            while not stop.is_set():
                if not self._dir.is_dir():
                    self._registered_with = None
                    log.info("waiting for the plugin directory", extra={"path": str(self._dir)})
                    stop.wait(_RETRY_SECONDS)
                    continue
                self._follow(stop)
        finally:
            self._stop_servers()

    def _follow(self, stop: threading.Event) -> None:
        """Look at every change in the directory for as long as it is the same directory."""
        directory = _identity(self._dir)
        self._ensure(stop)
        changes = watchfiles.watch(
            self._dir,
            watch_filter=None,
            debounce=50,
            step=10,
            stop_event=stop,
            rust_timeout=_LOOK_AGAIN_MS,
            yield_on_timeout=True,
            recursive=False,
            raise_interrupt=False,
        )
        try:
            for _ in changes:
                if _identity(self._dir) != directory:
                    return
                self._ensure(stop)
        except OSError as error:  # the directory went away, or inotify has no watches left
            log.warning("cannot watch the plugin directory", extra={"reason": str(error)})
            stop.wait(_RETRY_SECONDS)

    def _ensure(self, stop: threading.Event) -> None:
        """Serve and register if this kubelet does not know us or a socket of ours is gone."""
        while not stop.is_set():
            kubelet = _identity(self._dir / KUBELET_SOCKET)
            served = bool(self._servers) and all(each.socket.exists() for each in self._servers)
            if kubelet is None:
                self._registered_with = None
                return  # not started yet: its socket's appearance is the next change
            if served and kubelet == self._registered_with:
                return
            self._registered_with = None
            try:
                self._serve(stop)
                # Serving takes a moment, in which a kubelet may have come in the place of a
                # dead one: to be registered with the one and take it for the other would mean
                # to do it all again, and to cut off calls that it makes already.
                kubelet = _identity(self._dir / KUBELET_SOCKET)
                if kubelet is None:
                    continue
                for endpoint in self._endpoints:
                    self._register(endpoint, kubelet)
            except (OSError, grpc.RpcError) as error:
                log.warning("registration failed", extra={"reason": _reason(error)})
                stop.wait(_RETRY_SECONDS)
                continue
            self._registered_with = kubelet
            log.info(
                "registered",
                extra={"resources": [each.resource_name for each in self._endpoints]},
            )
            self._on_registered()

    def _serve(self, stop: threading.Event) -> None:
        if self._servers:
            # The kubelet drops whoever is registered when a stream of ours breaks, be it the
            # one before: give it time to see the old one end.
            self._stop_servers()
            stop.wait(_SETTLE_SECONDS)
        for endpoint in self._endpoints:
            server = PluginServer(endpoint.service(), self._dir / endpoint.socket_name)
            self._servers.append(server)

    def _stop_servers(self) -> None:
        for server in self._servers:
            server.stop()
        self._servers = []

    def _register(self, endpoint: Endpoint, kubelet: tuple[int, int, int]) -> None:
        """Register with this kubelet.

        Raises:
            OSError: it has been replaced meanwhile, or has removed our sockets: it would dial
                one that is gone until it gave up.
            grpc.RpcError: it refused, or did not answer in time.
        """
        with grpc.insecure_channel(
            f"unix:{self._dir / KUBELET_SOCKET}", options=(("grpc.enable_http_proxy", 0),)
        ) as channel:
            call = rpc.RegistrationStub(channel).Register.future(
                api.RegisterRequest(
                    version=_VERSION,
                    endpoint=endpoint.socket_name,
                    resource_name=endpoint.resource_name,
                    options=OPTIONS,
                ),
                timeout=_REGISTER_SECONDS,
            )
            done = threading.Event()
            call.add_done_callback(lambda _call: done.set())
            while not done.wait(_LOOK_SECONDS):
                if not all(each.socket.exists() for each in self._servers):
                    call.cancel()
                    raise OSError("the kubelet has removed our sockets")
                if _identity(self._dir / KUBELET_SOCKET) != kubelet:
                    call.cancel()
                    raise OSError("the kubelet was replaced")
            call.result()


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Tell one file from its successor of the same name: inodes are used again, times are not."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
