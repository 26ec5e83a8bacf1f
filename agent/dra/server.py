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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from agent.dra.claims import ClaimRef
from agent.dra.driver import ClaimDriver
from agent.errors import Refusal, Unavailable
from agent.host.stale_sockets import remove_dead
from common.backoff import Backoff
from common.grpc_services import add_service
from common.kubelet_api import dra_pb2 as api
from common.kubelet_api import drahealth_pb2 as health_api
from common.kubelet_api import pluginregistration_pb2 as registration

log = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""The services by the names under which a plugin lists them (``supported_versions``)."""

_THREADS = 128
"""Calls that wait for the end of other claims must not hold up ``NodeUnprepareResources``."""
_STOP_SECONDS = 1.0
_CHECK_SECONDS = 2.0
_BACKOFF_SECONDS = 0.1, 10.0
# The kubelet takes health that is older than the timeout for unknown.
_HEALTH_CHECK_SECONDS, _HEALTH_SECONDS, _HEALTH_TIMEOUT_SECONDS = 1.0, 10.0, 60


class DriverServer:
    """Serves a driver on two sockets until :meth:`stop`; again if a socket disappears.

    A claim that fails does not hold up the others of its call.
    """

    def __init__(
        self,
        calls: ClaimDriver,
        *,
        plugins: Path,
        registry: Path,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """Prepare; nothing is served yet.

        *plugins* is the folder of the driver's own socket, *registry* that of registration sockets,
        the proxy's or the kubelet's. *clock* returns monotonic seconds, *pause* waits so many
        seconds between two checks of health or sockets; by default :meth:`stop` ends it.
        """
        self._calls = calls
        self._clock = clock
        self._plugins = plugins
        self._registry = registry
        self._sockets: tuple[Path, ...] = ()
        self._server: grpc.Server | None = None
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self.registered = False
        """Whether a kubelet has registered this instance."""

    # --- claims ------------------------------------------------------------------------

    def NodePrepareResources(
        self, request: api.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> api.NodePrepareResourcesResponse:
        """Prepare each claim; the kubelet asks again for one with an error."""
        response = api.NodePrepareResourcesResponse()
        for claim in request.claims:
            ref = ClaimRef(claim.namespace, claim.name, claim.uid)
            entry = response.claims[claim.uid]
            try:
                found = self._calls.prepare(ref, context.is_active)
                for share, cdi_names in found.items():
                    entry.devices.add(
                        request_names=[share.request],
                        pool_name=self._calls.pool,
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
            ref = ClaimRef(claim.namespace, claim.name, claim.uid)
            entry = response.claims[claim.uid]
            try:
                self._calls.unprepare(ref)
            except Refusal as error:
                entry.error = str(error)
        return response

    # --- health ------------------------------------------------------------------------

    def NodeWatchResources(
        self, request: health_api.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_api.NodeWatchResourcesResponse]:
        """Send the health of every device: at once, within a second of a change, and repeatedly."""
        sent, due = None, 0.0
        while context.is_active() and not self._stopping.is_set():
            faults, now = self._calls.faults(), self._clock()
            if faults != sent or now >= due:
                sent, due = faults, now + _HEALTH_SECONDS
                response = health_api.NodeWatchResourcesResponse()
                for device, fault in faults.items():
                    response.devices.add(
                        device={"pool_name": self._calls.pool, "device_name": device},
                        health=health_api.UNHEALTHY if fault else health_api.HEALTHY,
                        last_updated_time=int(time.time()),
                        health_check_timeout_seconds=_HEALTH_TIMEOUT_SECONDS,
                        message=fault,
                    )
                yield response
            self._pause(_HEALTH_CHECK_SECONDS)

    # --- registration ------------------------------------------------------------------

    def GetInfo(self, request: registration.InfoRequest, context: Any) -> registration.PluginInfo:
        """Return the driver's name, its services and where they are served."""
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._calls.driver,
            endpoint=str(self._sockets[0]),
            supported_versions=SERVICES,
        )

    def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        """Log whether the kubelet has registered this instance."""
        self.registered = request.plugin_registered
        if request.plugin_registered:
            log.info("registered", extra={"resources": [self._calls.driver]})
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
                if self._server is None or not all(each.exists() for each in self._sockets):
                    self._serve()
                pauses.reset()
            except OSError as error:
                log.warning("registration failed", extra={"reason": str(error)})
                pause = pauses.next()
            if self.registered:  # not before: the kubelet would have no instance meanwhile
                remove_dead(self._registry, [f"{self._plugins.name}-*-reg.sock"])
                remove_dead(self._plugins, ["dra-*.sock"])
            self._pause(pause)
        self._end()

    def stop(self) -> None:
        """Make ``run`` return; calls in flight finish."""
        self._stopping.set()

    def _serve(self) -> None:
        """Serve on new sockets.

        Raises:
            OSError: a socket cannot be made.
        """
        self._end()
        self.registered = False
        instance = secrets.token_hex(4)
        self._plugins.mkdir(parents=True, exist_ok=True)
        self._sockets = (
            self._plugins / f"dra-{instance}.sock",
            self._registry / f"{self._plugins.name}-{instance}-reg.sock",
        )
        self._server = server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="dra"),
            options=(("grpc.so_reuseport", 0),),
        )
        add_service(server, api.DESCRIPTOR, "DRAPlugin", self)
        add_service(server, health_api.DESCRIPTOR, "DRAResourceHealth", self)
        add_service(server, registration.DESCRIPTOR, "Registration", self)
        for socket in self._sockets:  # the kubelet calls as soon as it finds the second one
            try:
                server.add_insecure_port(f"unix:{socket}")
            except RuntimeError as error:
                raise OSError(f"cannot bind {socket}: {error}") from error
        server.start()

    def _end(self) -> None:
        """Stop serving: registration first, so that the kubelet prefers another instance."""
        if self._server is not None:
            self._sockets[1].unlink(missing_ok=True)
            self._server.stop(_STOP_SECONDS).wait(_STOP_SECONDS + 1)
            self._sockets[0].unlink(missing_ok=True)
            self._server = None
