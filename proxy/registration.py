"""The registration service for device plugins, which they use as they would the kubelet's.

The response to a registration comes after the plugin has been dialled, as from a kubelet. If the
kubelet rejects the resource, the plugin gets the kubelet's error.
"""

import asyncio
import itertools
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from common.kubelet_api import KUBELET_SOCKET, RESOURCES_KEY
from common.kubelet_api import deviceplugin_pb2 as api
from proxy.errors import BadRegistration, Code, RpcFailed
from proxy.folder import Identity, has_no_listener, identity
from proxy.kubelet import VERSION, KubeletEndpoint
from proxy.plugin import CONNECT_SECONDS, PluginInstance
from proxy.waiting import Spawn
from proxy.wire import GrpcServer

log = logging.getLogger(__name__)

MOST_RESOURCES = 64
_ROOT = 0
_PRIVATE = 0o700
_QUOTED = 64
_LIST_SECONDS = CONNECT_SECONDS + 0.5
_KUBELET_SECONDS = 1.0
"""Seconds that the response waits for the first list, and then for the kubelet's response."""


class RegistrationService:
    """Serves ``kubelet.sock`` in the plugins' folder: each registration there makes an instance.

    Attributes:
        refused: number of refused registrations.
    """

    def __init__(
        self,
        folder: Path,
        *,
        endpoint_for: Callable[[str], KubeletEndpoint | None],
        forget: Callable[[str], None],
        spawn: Spawn,
    ) -> None:
        """Prepare.

        *endpoint_for* returns the server of a resource, created if it is new; ``None`` if there are
        too many. *forget* is called with a resource whose registration failed.
        """
        self.refused = 0
        self._folder = folder
        self._endpoint_for = endpoint_for
        self._forget = forget
        self._own_socket: Identity | None = None
        self._spawn = spawn
        self._numbers = itertools.count(1)
        self._server: GrpcServer | None = None
        self._stopped = False

    async def listen(self) -> None:
        """Create ``kubelet.sock``, unless it exists.

        The socket is created under another name and renamed: when gRPC stops, it unlinks the path
        that it was given, which may then be another proxy's socket.

        Raises:
            OSError: it cannot be created.
        """
        if self._stopped or (self._server is not None and not self._lost()):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(_PRIVATE)  # if a kubelet creates it for a mount, all users may read it
        before = self._server
        beside = self._folder / f".{os.urandom(4).hex()}.sock"
        server = GrpcServer(beside, f"{VERSION}.Registration", calls={"Register": self._register})
        await server.start()
        beside.rename(self._folder / KUBELET_SOCKET)
        self._own_socket = identity(self._folder / KUBELET_SOCKET)
        self._server = server
        if before is not None:
            await before.stop()

    def _lost(self) -> bool:
        """Return whether no proxy listens for plugins: neither this one, nor another."""
        path = self._folder / KUBELET_SOCKET
        found = identity(path)
        return found is None or (found != self._own_socket and has_no_listener(path))

    def leave(self) -> None:
        """Remove ``kubelet.sock``: so plugins know at once."""
        self._stopped = True
        path = self._folder / KUBELET_SOCKET
        if self._own_socket is not None and identity(path) == self._own_socket:
            path.unlink(missing_ok=True)

    async def stop(self) -> None:
        """Stop listening."""
        self.leave()
        if self._server is not None:
            await self._server.stop()

    async def _register(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Handle a registration.

        Raises:
            RpcFailed: it is refused; the text has the reason.
        """
        try:
            endpoint, name = self._read(request)
            kubelet_side = self._endpoint_for(name)
            if kubelet_side is None:
                raise RpcFailed(
                    Code.RESOURCE_EXHAUSTED, f"{MOST_RESOURCES} resources are registered already"
                )
            resources = frozenset(filter(None, metadata.get(RESOURCES_KEY, "").split(",")))
            kubelet_side.belongs_with(resources - {name})
            try:
                plugin = PluginInstance(self._folder, endpoint, next(self._numbers))
                await self._follow(kubelet_side, plugin)
            except RpcFailed:
                self._forget(name)
                raise
        except RpcFailed as failure:
            self.refused += 1
            log.warning("plugin refused", extra={"reason": failure.text})
            raise
        return api.Empty().SerializeToString()

    def _read(self, request: bytes) -> tuple[str, str]:
        """Return the endpoint and the resource's name of a registration.

        Raises:
            BadRegistration: it breaks a rule; the text names the field, the rule and the value.
        """
        try:
            parsed = api.RegisterRequest.FromString(request)
        except DecodeError as error:
            raise BadRegistration("the registration cannot be read as a RegisterRequest") from error
        if parsed.version != VERSION:
            raise BadRegistration(
                f"version: Unsupported value: {_quote(parsed.version)}: must be {VERSION}"
            )
        if not parsed.resource_name:
            raise BadRegistration("resource_name: Required value: the resource that is served")
        check_endpoint(self._folder, parsed.endpoint)
        return parsed.endpoint, parsed.resource_name

    async def _follow(self, kubelet_side: KubeletEndpoint, plugin: PluginInstance) -> None:
        """Follow a plugin; return when it serves and is registered with the kubelet, if it is up.

        Raises:
            RpcFailed: the plugin does not serve, or the kubelet rejects it.
        """
        resource = kubelet_side.resource
        connected: asyncio.Event = asyncio.Event()
        failed: list[RpcFailed] = []

        async def follow() -> None:
            try:
                await resource.follow(plugin, connected)
            except RpcFailed as failure:
                failed.append(failure)
                plugin.ended.set()

        self._spawn(follow())
        await resource.until(lambda: connected.is_set() or bool(failed), _LIST_SECONDS)
        if failed:
            raise failed[0]
        if connected.is_set():
            kubelet_side.refusal = ""  # drop the refusal of an earlier plugin
            await resource.until(
                lambda: resource.registered or bool(kubelet_side.refusal), _KUBELET_SECONDS
            )
        if kubelet_side.refusal:
            raise RpcFailed(
                Code.UNKNOWN, f"the kubelet rejects {resource.name}: {kubelet_side.refusal}"
            )


def check_endpoint(folder: Path, endpoint: str) -> None:
    """Check the name and the owner of a plugin's socket.

    Raises:
        BadRegistration: it has a path, or is not a socket of root or of our own user.
    """
    if endpoint in {"", ".", "..", KUBELET_SOCKET} or "/" in endpoint or "\0" in endpoint:
        raise BadRegistration(
            f"endpoint: Invalid value: {_quote(endpoint)}: must be the file name of the plugin's "
            "socket, without a path"
        )
    try:
        found = (folder / endpoint).lstat()
    except OSError as error:
        raise BadRegistration(
            f"endpoint: Not found: {_quote(endpoint)}: {error.strerror}"
        ) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise BadRegistration(f"endpoint: Invalid value: {_quote(endpoint)}: must be a socket")
    if found.st_uid not in {_ROOT, os.geteuid()}:
        raise BadRegistration(
            f"endpoint: Forbidden: {_quote(endpoint)}: must belong to root, but belongs to user "
            f"{found.st_uid}"
        )


def _quote(text: str) -> str:
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "...")
