"""Serves the driver to the kubelet, whose plugin watcher finds and registers it by its sockets.

With the device plugin proxy, the proxy finds them, and registers itself with the kubelet, whose
calls wait at the proxy while there is no agent.

Each instance has sockets with names of its own: for a rolling update the kubelet knows the old and
the new instance, and calls the newest one to which it is connected (``DRAPluginManager.get`` in its
``pkg/kubelet/cm/dra/plugin``). A restarted kubelet finds the sockets again by itself. A kubelet
that has lost all sockets of a driver deletes the driver's ResourceSlices 30 s later.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from agent.dra.claims import ClaimRef
from agent.dra.driver import ClaimDriver
from agent.errors import Refusal, Unavailable
from agent.host.stale_sockets import remove_dead
from common.backoff import Backoff
from common.kubelet_api import dra_pb2 as api
from common.kubelet_api import dra_pb2_grpc as rpc
from common.kubelet_api import drahealth_pb2 as health_api
from common.kubelet_api import drahealth_pb2_grpc as health_rpc
from common.kubelet_api import pluginregistration_pb2 as registration
from common.kubelet_api import pluginregistration_pb2_grpc as registration_rpc

log = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""The services by the names under which a plugin lists them (``supported_versions``)."""

_THREADS = 16
_STOP_SECONDS = 1.0
_CHECK_SECONDS = 2.0
_BACKOFF_SECONDS = 0.1, 10.0
# The kubelet takes health that is older than the timeout for unknown.
_HEALTH_SECONDS, _HEALTH_TIMEOUT_SECONDS = 10.0, 60


class DriverServer(
    rpc.DRAPluginServicer,
    health_rpc.DRAResourceHealthServicer,
    registration_rpc.RegistrationServicer,
):
    """Serves a driver on two sockets until :meth:`stop`; again if a socket disappears.

    A claim that fails does not hold up the others of its call.
    """

    stands_in = False
    """It does not stand in for a proxy: the kubelet calls again for a claim that has failed."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        driver: str,
        pool: str,
        calls: ClaimDriver,
        unhealthy: Callable[[], Iterable[tuple[str, str]]],
        plugins: Path,
        registry: Path,
    ) -> None:
        """Prepare; nothing is served yet.

        Args:
            driver: the driver's name.
            pool: the name of the node's pool of devices.
            calls: the prepared claims.
            unhealthy: returns each device's name and fault, empty without one.
            plugins: the folder of the driver's own socket.
            registry: the folder of registration sockets, the proxy's or the kubelet's.
        """
        self._driver = driver
        self._pool = pool
        self._calls = calls
        self._unhealthy = unhealthy
        self._changed = threading.Condition()
        self._changes = 0
        self._plugins = plugins
        self._registry = registry
        self._endpoint = Path()
        self._stopping = threading.Event()
        self._servers: list[tuple[Path, grpc.Server]] = []
        self.registered = False
        """Whether a kubelet has registered this instance."""

    # --- claims ------------------------------------------------------------------------

    def NodePrepareResources(
        self, request: api.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> api.NodePrepareResourcesResponse:
        """Prepare each claim; the kubelet asks again for one with an error."""
        response = api.NodePrepareResourcesResponse()
        for claim in request.claims:
            entry = response.claims[claim.uid]
            try:
                found = self._calls.prepare(_ref(claim), context.is_active)
                for share, cdi_names in found.items():
                    entry.devices.add(
                        request_names=[share.request],
                        pool_name=self._pool,
                        device_name=share.device,
                        cdi_device_ids=cdi_names,
                        share_id=share.share_id or None,
                    )
            except (Refusal, Unavailable) as error:
                entry.error = str(error)
        return response

    def NodeUnprepareResources(
        self, request: api.NodeUnprepareResourcesRequest, context: Any
    ) -> api.NodeUnprepareResourcesResponse:
        """Forget each claim."""
        response = api.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry = response.claims[claim.uid]
            try:
                self._calls.unprepare(_ref(claim))
            except Refusal as error:
                entry.error = str(error)
        return response

    # --- health ------------------------------------------------------------------------

    def NodeWatchResources(
        self, request: health_api.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_api.NodeWatchResourcesResponse]:
        """Send the health of every device: at once, after each change, and every ten seconds."""
        context.add_callback(self.wake)
        while context.is_active() and not self._stopping.is_set():
            seen = self._changes
            yield self._health()
            with self._changed:
                self._changed.wait_for(
                    lambda seen=seen: self._changes != seen,  # type: ignore[misc]
                    _HEALTH_SECONDS,
                )

    def wake(self) -> None:
        """Report that the health of a device may have changed."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _health(self) -> health_api.NodeWatchResourcesResponse:
        response, now = health_api.NodeWatchResourcesResponse(), int(time.time())
        for device, fault in self._unhealthy():
            response.devices.add(
                device={"pool_name": self._pool, "device_name": device},
                health=health_api.UNHEALTHY if fault else health_api.HEALTHY,
                last_updated_time=now,
                health_check_timeout_seconds=_HEALTH_TIMEOUT_SECONDS,
                message=fault,
            )
        return response

    # --- registration ------------------------------------------------------------------

    def GetInfo(self, request: registration.InfoRequest, context: Any) -> registration.PluginInfo:
        """Return the driver's name, its services and where they are served."""
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._endpoint),
            supported_versions=SERVICES,
        )

    def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        """Log whether the kubelet has registered this instance."""
        self.registered = request.plugin_registered
        if request.plugin_registered:
            log.info("registered", extra={"resources": [self._driver]})
        else:
            log.warning("registration failed", extra={"reason": request.error})
        return registration.RegistrationStatusResponse()

    # --- serving -----------------------------------------------------------------------

    def run(self) -> None:
        """Serve until ``stop``, and remove the sockets of killed instances."""
        pauses = Backoff(*_BACKOFF_SECONDS)
        while not self._stopping.is_set():
            pause = _CHECK_SECONDS
            try:
                if not self._servers or not all(path.exists() for path, _ in self._servers):
                    self._serve()
                pauses.reset()
            except OSError as error:
                log.warning("registration failed", extra={"reason": str(error)})
                pause = pauses.next()
            if self.registered:  # not before: the kubelet would have no instance meanwhile
                remove_dead(self._registry, [f"{self._plugins.name}-*-reg.sock"])
                remove_dead(self._plugins, ["dra-*.sock"])
            self._stopping.wait(pause)
        self._end_servers()

    def stop(self) -> None:
        """Make ``run`` return; calls in flight finish."""
        self._stopping.set()
        self.wake()

    def _serve(self) -> None:
        """Serve on new sockets.

        Raises:
            OSError: a socket cannot be made.
        """
        self._end_servers()
        self.registered = False
        instance = secrets.token_hex(4)
        self._plugins.mkdir(parents=True, exist_ok=True)
        self._endpoint = self._plugins / f"dra-{instance}.sock"
        self._listen(
            self._endpoint,
            rpc.add_DRAPluginServicer_to_server,
            health_rpc.add_DRAResourceHealthServicer_to_server,
        )
        # Last: the kubelet calls as soon as it finds this socket.
        self._listen(
            self._registry / f"{self._plugins.name}-{instance}-reg.sock",
            registration_rpc.add_RegistrationServicer_to_server,
        )

    def _listen(self, socket: Path, *services: Callable[[Any, grpc.Server], None]) -> None:
        server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix=socket.stem),
            options=(("grpc.so_reuseport", 0),),
        )
        for add in services:
            add(self, server)
        try:
            server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise OSError(f"cannot bind {socket}: {error}") from error
        server.start()
        self._servers.append((socket, server))

    def _end_servers(self) -> None:
        """Stop serving: registration first, so that the kubelet prefers another instance."""
        self.wake()
        while self._servers:
            path, server = self._servers.pop()
            server.stop(_STOP_SECONDS).wait(_STOP_SECONDS + 1)
            path.unlink(missing_ok=True)


def _ref(claim: api.Claim) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)
