"""Registration with the kubelet, or with the device plugin proxy, which acts as a kubelet.

A restarting kubelet deletes the sockets in its plugin directory and makes a new
``kubelet.sock``; every plugin must then register again (K11). If the stream of an earlier
registration breaks, the kubelet drops the plugin that is registered under that resource name at
that moment (K18). The agent detects this by the end of its own stream, and registers again at once.

When the proxy ends, the agent stands in for it: it registers the same sockets with the kubelet
itself, until it finds the next proxy, and hands back (``common/handover.py``). A killed proxy hands
nothing over, so its end is noticed for some hundredths of a second.

Where the agent registers with the kubelet itself, it hides its resources until the kubelet knows
all of them, as the proxy does (``common/known_resources.py``).
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from agent.host.stale_sockets import refuses
from agent.kubelet.kubelet_instance import DirectoryWatch, identity
from agent.kubelet.server import OPTIONS, DevicePluginService, PluginServer
from common.backoff import Backoff
from common.grpc_services import make_stub
from common.handover import POLL_SECONDS, hand_over
from common.known_resources import known_resources, wait_known
from common.kubelet_api import CHECKPOINT_FILE, KUBELET_SOCKET, RESOURCES_KEY
from common.kubelet_api import deviceplugin_pb2 as api

log = logging.getLogger(__name__)

_VERSION = "v1beta1"
_CHECK_SECONDS = 0.05
# The kubelet joins its directory and the endpoint of a registration, and resolves the dots.
_TO_ROOT = "../" * 16

_Kubelet = tuple[int, int, int]
"""A kubelet instance, identified by the file of its socket."""


@dataclass(frozen=True, slots=True)
class RegistrationSeconds:
    """How long a registration may take, in seconds.

    Attributes:
        response: longest wait for the kubelet's response.
        stream: longest wait for its call of ``ListAndWatch``, and until it has taken a list. A
            kubelet that has registered a plugin calls it at once.
        shortest_pause: pause after the first failure, which doubles with every further one.
        longest_pause: bound of the pause.
    """

    response: float = 5.0
    stream: float = 2.0
    shortest_pause: float = 0.005
    longest_pause: float = 1.0


SECONDS = RegistrationSeconds()


class Registrar:
    """Serves and registers the resources, again after each restart of the kubelet.

    Each server gets a socket with a new name: gRPC unlinks a socket's path when its server stops,
    possibly late, and another server might already listen there.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        plugin_dir: Path,
        kubelet_dir: Path,
        services: Mapping[str, Callable[[], DevicePluginService]],
        on_gap: Callable[[float], None] = lambda _seconds: None,
        on_proxy_end: Callable[[], None] = lambda: None,
        seconds: RegistrationSeconds = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is served yet.

        Args:
            plugin_dir: where the agent registers: the proxy's directory, or the kubelet's own.
            kubelet_dir: the kubelet's own, only read.
            services: a factory for each resource, by the name that pods use: every server needs a
                service of its own.
            on_gap: called after each registration with the seconds during which there was a
                ``kubelet.sock`` with which this agent was not registered.
            on_proxy_end: called when the agent stands in for a proxy that has ended.
            seconds: how long a registration may take.
            clock: returns monotonic seconds.
        """
        self._seconds = seconds
        self._clock = clock
        self._dir = plugin_dir
        self._kubelet_socket = kubelet_dir / KUBELET_SOCKET
        self._checkpoint = kubelet_dir / CHECKPOINT_FILE
        self._has_proxy = plugin_dir.resolve() != kubelet_dir.resolve()
        self._proxied = False  # whether a proxy has ever registered us
        self._on_gap = on_gap
        self._on_proxy_end = on_proxy_end
        self._services = services
        self._served: dict[str, PluginServer] = {}
        self._watch = DirectoryWatch(plugin_dir)
        self._registered_with: _Kubelet | None = None
        self._stands_in = False
        self._unregistered_since: float | None = None
        self._directory_missing = False
        self._stopping = threading.Event()

    @property
    def registered(self) -> bool:
        """Whether all resources are registered with the running kubelet."""
        return self._registered_with is not None

    @property
    def stands_in(self) -> bool:
        """Whether the kubelet was registered with directly, because the proxy has ended."""
        return self._stands_in

    @property
    def sockets(self) -> list[Path]:
        """The sockets of the running servers."""
        return [each.socket for each in self._served.values()]

    def run(self) -> None:
        """Serve and register until ``stop``; again whenever the kubelet restarts or drops us."""
        retries = Backoff(self._seconds.shortest_pause, self._seconds.longest_pause)
        try:
            while not self._stopping.is_set():
                kubelet = self._find_unregistered_kubelet()
                if kubelet is None:
                    self._watch.wait()
                elif self._try_to_register() or self._wait_for_replacement(
                    kubelet, within=retries.next()
                ):
                    retries.reset()
        finally:
            self._end_servers()
            self._watch.close()

    def stop(self) -> None:
        """Make ``run`` return; calls in flight finish."""
        self._stopping.set()
        self._watch.wake()

    def _register_again(self) -> None:
        """Register again at once: the kubelet may have dropped us."""
        self._registered_with = None
        self._watch.wake()

    # --- serving -----------------------------------------------------------------------

    def _all_served(self) -> bool:
        """Return whether every resource is served on a socket that still exists."""
        return bool(self._served) and all(each.socket.exists() for each in self._served.values())

    def _serve(self) -> None:
        """Serve every resource on a new socket, and stop the servers on older ones.

        Raises:
            OSError: a socket cannot be made.
        """
        self._end_servers()
        for name, make in self._services.items():
            service = make()
            service.on_stream_end = self._register_again
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

    def _target(self) -> Path:
        """Return the socket to register at: the kubelet's own one if the proxy has ended."""
        usual = self._dir / KUBELET_SOCKET
        if not self._proxied or (self.registered and identity(usual) == self._registered_with):
            return usual
        return self._kubelet_socket if refuses(usual) else usual

    def _find_unregistered_kubelet(self) -> _Kubelet | None:
        """Return the running kubelet unless we are registered with it; ``None`` if none runs."""
        kubelet = identity(self._target())
        if kubelet is None:
            self._registered_with = self._unregistered_since = None
            missing = not self._dir.is_dir()
            if missing and not self._directory_missing:
                log.info("waiting for the plugin directory", extra={"path": str(self._dir)})
            self._directory_missing = missing
            return None
        return None if self._all_served() and kubelet == self._registered_with else kubelet

    def _try_to_register(self) -> bool:
        """Serve the resources unless they are served, register them, and return the success."""
        self._registered_with = None
        if self._unregistered_since is None:
            self._unregistered_since = self._clock()
        try:
            if not self._all_served():
                self._serve()
            # While the servers start, a new kubelet may have replaced a dead one. If we registered
            # with the new one but remembered the old one, we would register again, and cut off
            # calls that the new one already makes.
            target = self._target()
            kubelet = identity(target)
            if kubelet is not None and self._stands_in and target != self._kubelet_socket:
                self._hand_back(target, kubelet)
            elif kubelet is not None:
                self._register_all(target, kubelet)
        except (OSError, grpc.RpcError) as error:
            log.warning("registration failed", extra={"reason": _reason(error)})
            return False
        return True

    def _wait_for_replacement(self, kubelet: _Kubelet, *, within: float) -> bool:
        """Wait before the next try, but no longer than until another kubelet runs.

        The socket of a dead kubelet refuses connections until its successor has started. The
        successor admits the node's pods half a second after plugins can register.

        Returns:
            Whether another kubelet runs.
        """
        until = self._clock() + within
        while not self._stopping.is_set():
            if identity(self._target()) not in (kubelet, None):
                return True
            rest = until - self._clock()
            if rest <= 0:
                break
            self._watch.wait(rest)
        return False

    def _register_all(self, target: Path, kubelet: _Kubelet) -> None:
        """Register every resource, and wait until the kubelet has all lists.

        Raises:
            OSError: the kubelet has been replaced, or has dropped us already.
            grpc.RpcError: it refused, or did not respond in time.
        """
        served = self._served
        direct = not self._has_proxy or target == self._kubelet_socket
        stands_in = direct and self._has_proxy
        hidden = direct and not self._all_known()
        self._set_hidden(hidden=hidden)
        streams = [(each.service, each.service.streams) for each in served.values()]
        self._register(target, kubelet)
        deadline = self._clock() + self._seconds.stream
        for service, before in streams:
            if not service.wait_streamed(before, deadline - self._clock()):
                raise OSError("the kubelet does not call ListAndWatch")
        if hidden:
            self._show_when_known([service for service, _ in streams])
        self._registered_with = kubelet
        if not all(service.streaming for service, _ in streams):
            self._registered_with = None  # a stream ended meanwhile: no further callback would come
            return
        since, self._unregistered_since = self._unregistered_since, None
        self._on_gap(0.0 if since is None else self._clock() - since)
        self._proxied = self._has_proxy
        if stands_in and not self._stands_in:
            log.warning("the device plugin proxy has ended: serving the kubelet directly")
            self._on_proxy_end()
        self._stands_in = stands_in
        log.info("registered", extra={"resources": list(served)})

    def _all_known(self) -> bool:
        """Return whether the kubelet knows all resources: none is passed over (K11)."""
        return self._services.keys() <= known_resources(self._checkpoint.parent)

    def _show_when_known(self, services: Sequence[DevicePluginService]) -> None:
        """Wait until the kubelet knows all resources, or a stream ends; then show the devices.

        Until it has the new lists, it refuses pods, so nobody is told earlier that all is ready.
        """
        for step in wait_known(
            self._services.keys(),
            self._checkpoint.parent,
            is_over=lambda: not all(each.streaming for each in services),
        ):
            self._wait(*step)
        self._set_hidden(hidden=False)
        deadline = self._clock() + self._seconds.stream
        for each in services:
            if not each.wait_listed(max(deadline - self._clock(), 0)):
                raise OSError("the kubelet does not take the list of devices")

    def _set_hidden(self, *, hidden: bool) -> None:
        for each in self._served.values():
            each.service.set_hidden(hidden=hidden)

    def _hand_back(self, target: Path, kubelet: _Kubelet) -> None:
        """Register with the next proxy, and end the streams to the kubelet.

        Raises:
            OSError, grpc.RpcError: as :meth:`_register_all`.
        """
        for step in hand_over(
            [each.service for each in self._served.values()],
            let_register=lambda: self._register_all(target, kubelet),
            checkpoint=lambda: identity(self._checkpoint),
        ):
            self._wait(*step)

    def _wait(self, condition: Callable[[], bool], within: float) -> None:
        until = self._clock() + within
        while not condition() and self._clock() < until:
            if self._stopping.wait(POLL_SECONDS):
                return

    def _register(self, target: Path, kubelet: _Kubelet) -> None:
        """Register all resources with this kubelet, at the same time.

        Raises:
            OSError: it was replaced meanwhile (a proxy is back), or has removed our sockets: it
                would dial a removed one until it gave up.
            grpc.RpcError: it refused, or did not respond in time.
        """
        prefix = "" if target.parent == self._dir else f"{_TO_ROOT}{self._dir.absolute()}/"
        done = threading.Event()
        with _channel(target) as channel:
            register = make_stub(channel, api.DESCRIPTOR, "Registration").Register
            calls = [
                register.future(
                    api.RegisterRequest(
                        version=_VERSION,
                        endpoint=f"{prefix}{server.socket.name}",
                        resource_name=resource_name,
                        options=OPTIONS,
                    ),
                    timeout=self._seconds.response,
                    metadata=((RESOURCES_KEY, ",".join(self._services)),),
                )
                for resource_name, server in self._served.items()
            ]
            for each in calls:
                each.add_done_callback(lambda _call: done.set())
            while pending := [each for each in calls if not each.done()]:
                done.wait(_CHECK_SECONDS)
                done.clear()
                for each in calls:
                    if each not in pending:
                        each.result()
                if not self._all_served():
                    raise OSError("the kubelet has removed our sockets")
                if identity(target) != kubelet or self._target() != target:
                    raise OSError("the kubelet was replaced")
            for each in calls:
                each.result()


def _channel(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{socket}",
        # A shared pool would keep the back-off that a dead kubelet caused.
        options=(("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)),
    )


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
