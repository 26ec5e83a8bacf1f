"""Drivers for Dynamic Resource Allocation: the kubelet's calls wait for the next instance.

A driver registers here by the two sockets with which it would register with the kubelet, both in
the plugins' folder. The proxy has a registration of its own in the kubelet's registry, and forwards
each call to the newest instance. A kubelet asks again for a failed claim up to 90 s later, so a
call that an instance leaves unanswered is sent again: a driver must prepare a prepared claim again.

A kubelet deletes the ResourceSlices of a driver 30 s after it has lost it. So without an instance
for ``patience``, the proxy stops listening for the kubelet as well.

A kubelet calls the newest of several registrations, and closes the connection of one whose socket
has gone (``DRAPluginManager`` in its ``pkg/kubelet/cm/dra/plugin``). So a proxy that ends waits for
the calls in progress; if the next proxy is registered already, no call comes meanwhile.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from common.kubelet_api import pluginregistration_pb2 as api
from proxy.errors import BadRegistration, Code, RpcFailed
from proxy.folder import Identity, has_no_listener, identity
from proxy.registration import check_endpoint
from proxy.waiting import Instance, LogTexts, ProxiedService, Spawn
from proxy.wire import GrpcPeer, GrpcServer

log = logging.getLogger(__name__)

_TYPE = "DRAPlugin"
_REGISTRATION = "pluginregistration.Registration"
_CLAIMS = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_HEALTH, _WATCH = "v1alpha1.DRAResourceHealth", "NodeWatchResources"
_CALLS = ("NodePrepareResources", "NodeUnprepareResources")
_SUFFIX = "-reg.sock"
_PREFIX = "proxy-"
_INFO_SECONDS = 2.0
_ANSWER_SECONDS = 40.0
"""The kubelet gives up after 45 s."""
_POLL_SECONDS = 0.02
_STARTUP_SECONDS = 10.0


class DriverInstance(Instance):
    """A driver that was found by its registration socket, until no process serves it any more."""

    def __init__(self, registration: Path, endpoint: Path, number: int) -> None:
        super().__init__(endpoint, _CLAIMS, number)
        self._registration = registration
        self._socket = endpoint

    async def wait_for_end(self) -> None:
        """Return when no process listens at its socket any more."""
        while not has_no_listener(self._socket):
            await self.peer.disconnected()

    async def test(self) -> None:
        """Get its info; as :meth:`Instance.test`."""
        await _call_registration(self._registration, "GetInfo", b"")

    async def notify(self, status: bytes) -> None:
        """Report the kubelet's response to the registration."""
        with contextlib.suppress(RpcFailed, TimeoutError):
            async with asyncio.timeout(_INFO_SECONDS):
                await _call_registration(self._registration, "NotifyRegistrationStatus", status)


async def _call_registration(registration: Path, method: str, request: bytes) -> bytes:
    async with GrpcPeer(registration) as peer:
        return await peer.call(f"/{_REGISTRATION}/{method}", request)


class ProxiedDriver(ProxiedService[DriverInstance]):
    """One driver: its instances, and its registration with the kubelet.

    Attributes:
        status: the kubelet's ``RegistrationStatus``; ``None`` before the first.
        problem: why there is no registration with the kubelet; empty if there is one.
    """

    texts = LogTexts(
        field="driver",
        connected="driver connected",
        disconnected="driver disconnected",
        silent="driver silent",
        responding="driver responds again",
        waiting="calls wait for a driver",
        repeated="driver called again",
        given_up="driver given up",
    )

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        info: api.PluginInfo,
        *,
        folder: Path,
        registry: Path,
        patience: float,
        spawn: Spawn,
        on_change: Callable[[], None],
    ) -> None:
        """Prepare; nothing is served before an instance is followed.

        *info* is what an instance says of itself, *folder* where plugins register and the proxy
        serves the kubelet, *registry* the kubelet's folder of registration sockets. *on_change* is
        called when :meth:`check` is due.
        """
        super().__init__(info.name, patience=patience, spawn=spawn, on_change=on_change)
        self.longest_call = _ANSWER_SECONDS
        self.status: bytes | None = None
        self.problem = ""
        self._info = info
        self._folder = folder
        self._registry = registry
        self._servers: list[GrpcServer] = []

    async def follow(self, instance: DriverInstance) -> None:
        """Send the calls to a new instance until it ends."""
        self.roster.join(instance, instance.number)
        self.log(self.texts.connected, instance)
        self.update()
        if self.status is not None:
            self._spawn(instance.notify(self.status))
        await instance.wait_for_end()
        instance.ended.set()
        self.roster.leave(instance)
        self.update()
        self.log(self.texts.disconnected, instance)
        await instance.close()  # its calls in progress are sent again

    async def check(self) -> None:
        """Serve the kubelet while an instance serves, and for ``patience`` after it."""
        if self.roster.given_up:
            await self.stop()
        elif self.roster.serving is not None and not (
            self._servers and all(each.socket.exists() for each in self._servers)
        ):
            await self._serve()

    async def stop(self) -> None:
        """Stop serving the kubelet, the registration first."""
        self.status, self.registered = None, False
        while self._servers:
            await self._servers.pop().stop()

    async def _serve(self) -> None:
        await self.stop()
        name = f"{_PREFIX}{os.urandom(4).hex()}"
        calls = {each: functools.partial(self._call_instance, each) for each in _CALLS}
        claims = GrpcServer(self._folder / f"{name}.sock", _CLAIMS, calls=calls)
        claims.add(_HEALTH, streams={_WATCH: self._health})
        registration = GrpcServer(
            self._registry / f"{name}{_SUFFIX}",
            _REGISTRATION,
            calls={
                "GetInfo": functools.partial(self._get_info, claims.socket),
                "NotifyRegistrationStatus": self._take_status,
            },
        )
        try:
            for each in (claims, registration):  # the kubelet calls as soon as it finds the second
                await each.start()
                self._servers.append(each)
        except OSError as error:
            if str(error) != self.problem:
                log.error("cannot register", extra={"driver": self.name, "reason": str(error)})
            self.problem = str(error)
            await self.stop()
        else:
            self.problem = ""

    # --- the kubelet's calls -----------------------------------------------------------

    async def _get_info(
        self, endpoint: Path, _request: bytes, _metadata: Mapping[str, str]
    ) -> bytes:
        info = api.PluginInfo()
        info.CopyFrom(self._info)
        info.endpoint = str(endpoint)
        return info.SerializeToString()

    async def _take_status(self, status: bytes, _metadata: Mapping[str, str]) -> bytes:
        """Report the kubelet's response to the newest instance; it counts as registered then."""
        self.status = status
        self.registered = api.RegistrationStatus.FromString(status).plugin_registered
        if (instance := self.roster.serving) is not None:
            await instance.notify(status)
        return api.RegistrationStatusResponse().SerializeToString()

    async def _health(self) -> AsyncIterator[bytes]:
        """Forward one instance's health until it ends: the kubelet asks again after 5 s."""
        if (instance := self.roster.serving) is not None:
            with contextlib.suppress(RpcFailed):
                async for each in instance.peer.stream(f"/{_HEALTH}/{_WATCH}"):
                    yield each

    async def _call_instance(
        self, method: str, request: bytes, _metadata: Mapping[str, str]
    ) -> bytes:
        with self.counting_call():
            return await self.forward(method, request)

    def overdue(self, method: str, waited: float) -> str:
        """Return the error of a call without a response, as :meth:`ProxiedService.overdue`."""
        del method
        return f"driver {self.name} has not responded within {waited:.0f} s"


class Drivers:
    """Finds drivers by their registration sockets.

    Attributes:
        found: the drivers, by their names and services.
    """

    def __init__(self, folder: Path, registry: Path, *, patience: float, spawn: Spawn) -> None:
        """Prepare; the arguments are those of :class:`ProxiedDriver`."""
        self.found: dict[tuple[str, ...], ProxiedDriver] = {}
        self._folder = folder
        self._spawn = spawn
        self._make = functools.partial(
            ProxiedDriver,
            folder=folder,
            registry=registry,
            patience=patience,
            spawn=spawn,
            on_change=self.check,
        )
        self._numbers = itertools.count(1)
        self._known: set[Identity] = set()
        self._changed = asyncio.Event()
        self._has_looked = False

    def check(self) -> None:
        """Check after a change of the folder, and from time to time."""
        self._changed.set()

    async def run(self) -> None:
        """Follow the drivers until cancelled.

        Raises:
            OSError: the drivers' folder cannot be made.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._find_new()
            for each in self.found.values():
                await each.check()
            self._has_looked = True

    @property
    def under_way(self) -> int:
        """The number of calls in progress."""
        return sum(each.under_way for each in self.found.values())

    async def stop(self) -> None:
        """Stop serving the kubelet, which ends the calls in progress."""
        for each in self.found.values():
            await each.stop()

    def problem(self) -> str:
        """Return why a driver is not registered with the kubelet; empty if all are."""
        if not self._has_looked:
            return "drivers are not found yet"
        for each in tuple(self.found.values()):
            if each.roster.serving is not None and each.status is None:
                reason = each.problem or "no kubelet is running"
                return f"driver {each.name} is not registered with the kubelet: {reason}"
        return ""

    async def _find_new(self) -> None:
        present = {path: identity(path) for path in sorted(self._folder.glob(f"*{_SUFFIX}"))}
        self._known &= {each for each in present.values() if each is not None}
        for path, each in present.items():
            if each is None or each in self._known:
                continue
            if has_no_listener(path):  # it has ended, or is between bind and listen
                if time.time() - each[2] / 1e9 < _STARTUP_SECONDS:
                    asyncio.get_running_loop().call_later(_POLL_SECONDS, self.check)
                continue
            try:
                await self._add(path)
            except RpcFailed as failure:
                log.warning("driver refused", extra={"path": str(path), "reason": str(failure)})
                if not isinstance(failure, BadRegistration):
                    continue  # asked again
            self._known.add(each)

    async def _add(self, registration: Path) -> None:
        """Add the instance with this registration socket.

        Raises:
            RpcFailed: it does not respond.
            BadRegistration: it is not a driver, or its socket is none that plugins may have.
        """
        check_endpoint(self._folder, registration.name)
        try:
            async with asyncio.timeout(_INFO_SECONDS):
                response = await _call_registration(registration, "GetInfo", b"")
            info = api.PluginInfo.FromString(response)
        except TimeoutError as error:
            raise RpcFailed(Code.UNAVAILABLE, f"no response in {_INFO_SECONDS:g} s") from error
        except DecodeError as error:
            raise BadRegistration("its info cannot be read") from error
        if info.type != _TYPE or not info.name:
            raise BadRegistration(f"type: Unsupported value: {info.type[:64]!r}: must be {_TYPE}")
        endpoint = self._folder / Path(info.endpoint).name
        check_endpoint(self._folder, endpoint.name)
        if has_no_listener(endpoint):
            raise RpcFailed(Code.UNAVAILABLE, f"no process listens at {endpoint.name}")
        key = (info.name, *info.supported_versions)
        if key not in self.found:
            self.found[key] = self._make(info)
        instance = DriverInstance(registration, endpoint, next(self._numbers))
        self._spawn(self.found[key].follow(instance))
