"""The kubelet's side: one server for each resource, registered with the current kubelet.

A kubelet that starts removes the plugins' sockets and makes a new ``kubelet.sock``. If the stream
of an earlier registration breaks, the kubelet drops the plugin that is registered under that name
now (K18, docs/kubelet-facts.md). So streams of a running kubelet are never ended from here, and
after the end of the newest stream the resource is registered again.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
from pathlib import Path

from common.known_resources import known_resources, wait_known
from common.kubelet_api import KUBELET_SOCKET
from common.kubelet_api import deviceplugin_pb2 as api
from proxy.errors import RpcFailed
from proxy.folder import Identity, has_no_listener
from proxy.plugin import SERVICE
from proxy.resource import ProxiedResource
from proxy.waiting import Spawn
from proxy.wire import GrpcPeer, GrpcServer

log = logging.getLogger(__name__)

VERSION = "v1beta1"
_PREFIX = "proxy-"
_CALLS = ("GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "PreStartContainer")
_REGISTER_SECONDS = 10.0
_STREAM_SECONDS = 2.0
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_STEADY_SECONDS = 1.0
"""After a registration that lasted less, the next one waits for a pause."""


class KubeletEndpoint:
    """The server of one resource for the kubelet, and its registration.

    Attributes:
        refusal: why the last registration failed; empty if it succeeded.
    """

    def __init__(self, folder: Path, resource: ProxiedResource, spawn: Spawn) -> None:
        """Prepare; nothing is served yet.

        *folder* is the kubelet's device plugin directory.
        """
        self.resource = resource
        self.refusal = ""
        self._folder = folder
        self._spawn = spawn
        self._server: GrpcServer | None = None
        self._retired: list[GrpcServer] = []
        self._registered_options: bytes | None = None
        self._others: frozenset[str] = frozenset()
        self._hiding: asyncio.Task[None] | None = None
        self._kubelet: Identity | None = None
        self._registering: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def belongs_with(self, others: frozenset[str]) -> None:
        """Set the plugin's other resources: the kubelet must know them before it gives out this."""
        if others != self._others:
            self._others = others
            self._hide()

    def _hide(self) -> None:
        """Hide the devices until the kubelet knows the plugin's other resources."""
        if self._hiding is not None:
            self._hiding.cancel()
        hidden = not self._others <= known_resources(self._folder)
        self.resource.set_hidden(hidden=hidden)
        self._hiding = self._spawn(self._show_when_known()) if hidden else None

    async def _show_when_known(self) -> None:
        for each in wait_known(self._others, self._folder, resource=self.resource.name):
            await self.resource.until(*each)
        self.resource.set_hidden(hidden=False)

    def check(self, kubelet: Identity | None) -> None:
        """Check after a change: is the kubelet a new instance, has it dropped us or our socket?

        *kubelet* is the identity of its socket; ``None`` if it has none.
        """
        if kubelet != self._kubelet:
            self._kubelet, self.resource.registered, self.refusal = kubelet, False, ""
            self._hide()
            if self._registering is not None:  # a registration with the earlier kubelet is useless
                self._registering.cancel()
                self._registering = None
            if kubelet is not None:
                self._registering = self._spawn(self._stay_registered())
        if self.resource.hidden:
            self.resource.notify()
        if not self.resource.streaming:
            self.resource.registered = False
        self._wake.set()

    def stop_registering(self) -> None:
        """Do not register again if the kubelet's stream ends; calls are still served."""
        if self._registering is not None:
            self._registering.cancel()

    async def stop(self) -> None:
        """End all streams."""
        self.stop_registering()
        for each in (*self._retired, *((self._server,) if self._server else ())):
            await each.stop()

    # --- registering -------------------------------------------------------------------

    @property
    def _due(self) -> bool:
        if self.resource.roster.last is None:
            return False
        served = self._server is not None and self._server.socket.exists()
        known = self._registered_options == self.resource.options
        return not (self.resource.registered and served and known)

    async def _stay_registered(self) -> None:
        """Stay registered with the current kubelet."""
        for each in self._retired:  # their kubelet has ended
            self._spawn(each.stop())
        self._retired = []
        clock = asyncio.get_running_loop().time
        pause, since = _SHORTEST_PAUSE, -math.inf
        while True:
            self._wake.clear()
            if not self._due:
                await self._wake.wait()
                continue
            if clock() - since < _STEADY_SECONDS:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = _SHORTEST_PAUSE
            try:
                await self._register()
            except (RpcFailed, OSError) as error:
                self._report(str(error))
            else:
                log.info("registered", extra={"resource": self.resource.name})
            since = clock()

    async def _register(self) -> None:
        """Serve on an existing socket, and register it.

        Raises:
            RpcFailed: the kubelet rejects it, or has ended.
            OSError: no socket can be created, or the kubelet does not request the devices.
        """
        resource, options = self.resource, self.resource.options
        server = await self._serve()
        streams = resource.streams
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=server.socket.name,
            resource_name=resource.name,
            options=api.DevicePluginOptions.FromString(options),
        )
        async with GrpcPeer(self._folder / KUBELET_SOCKET) as peer:
            try:
                async with asyncio.timeout(_REGISTER_SECONDS):
                    await peer.call(
                        f"/{VERSION}.Registration/Register", request.SerializeToString()
                    )
            except TimeoutError as error:
                raise OSError(f"no response from the kubelet in {_REGISTER_SECONDS:g} s") from error
        if not await resource.until(lambda: resource.streams > streams, _STREAM_SECONDS):
            raise OSError("the kubelet has not requested the devices")
        resource.registered, self._registered_options, self.refusal = (
            resource.streaming,
            options,
            "",
        )
        resource.notify()

    async def _serve(self) -> GrpcServer:
        if self._server is not None and self._server.socket.exists():
            return self._server
        socket = self._folder / f"{_PREFIX}{os.urandom(4).hex()}.sock"
        server = GrpcServer(
            socket,
            SERVICE,
            calls={name: functools.partial(self.resource.call, name) for name in _CALLS},
            streams={"ListAndWatch": self.resource.list_and_watch},
        )
        await server.start()
        if self._server is not None:
            self._retired.append(self._server)
        self._server = server
        return server

    def _report(self, reason: str) -> None:
        if reason != self.refusal:
            self.refusal = reason
            self.resource.notify()
            log.warning(
                "registration failed", extra={"resource": self.resource.name, "reason": reason}
            )


def remove_left_behind(folder: Path) -> None:
    """Remove sockets of a killed proxy: those on which no process listens."""
    for path in folder.glob(f"{_PREFIX}*.sock"):
        with contextlib.suppress(OSError):
            if has_no_listener(path):
                path.unlink()
