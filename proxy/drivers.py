"""Drivers for Dynamic Resource Allocation: the kubelet's calls wait for the next instance.

A driver registers here by the two sockets with which it would register with the kubelet, both in
the plugins' folder. The proxy has a registration of its own in the kubelet's registry, and forwards
each call to the newest instance. A kubelet asks again for a failed claim up to 90 s later, so a
call that an instance leaves unanswered is sent again: a driver must prepare a prepared claim again.

A kubelet deletes the ResourceSlices of a driver 30 s after it has lost it. So without an instance
for ``patience``, the proxy stops listening for the kubelet as well.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError

from common.kubelet_api import pluginregistration_pb2 as api
from proxy.errors import BadRegistration, Code, RpcFailed
from proxy.folder import Identity, has_no_listener, identity
from proxy.registration import check_endpoint
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
_UNANSWERED = frozenset({Code.UNAVAILABLE, Code.CANCELLED})
"""Status of a call whose instance has ended; one that is ending may return others as well."""
_AMBIGUOUS = frozenset({Code.UNKNOWN, Code.INTERNAL})


@dataclass(eq=False)
class _Instance:
    """One instance of a driver: its registration socket, and the socket that it serves."""

    registration: Path
    endpoint: Path
    peer: GrpcPeer = field(init=False)

    def __post_init__(self) -> None:
        self.peer = GrpcPeer(self.endpoint)

    @property
    def has_ended(self) -> bool:
        return not self.endpoint.exists() or has_no_listener(self.endpoint)


class ProxiedDriver:
    """One driver: its instances, and its registration with the kubelet.

    Attributes:
        name: the driver's name.
        repeated: number of calls that were sent again.
        status: the kubelet's ``RegistrationStatus``; ``None`` before the first.
        problem: why there is no registration with the kubelet; empty if there is one.
    """

    def __init__(
        self, info: api.PluginInfo, *, folder: Path, registry: Path, patience: float
    ) -> None:
        """Prepare; nothing is served before an instance is added.

        Args:
            info: what an instance says of itself.
            folder: where plugins register, and where the proxy serves the kubelet.
            registry: the kubelet's folder of registration sockets.
            patience: seconds without an instance after which the kubelet may know.
        """
        self.name = info.name
        self.repeated = 0
        self.status: bytes | None = None
        self.problem = ""
        self._info = info
        self._folder = folder
        self._registry = registry
        self._patience = patience
        self._instances: list[_Instance] = []  # the newest is the last
        self._served_at = time.monotonic()
        self._servers: list[GrpcServer] = []

    @property
    def _serving(self) -> _Instance | None:
        """The newest instance that has not ended."""
        return next((each for each in reversed(self._instances) if not each.has_ended), None)

    @property
    def awaits_kubelet(self) -> bool:
        """Whether there is an instance, but no response of the kubelet to the registration."""
        return bool(self._instances) and self.status is None

    async def add(self, registration: Path, endpoint: Path) -> None:
        """Send the calls to a new instance from now on."""
        self._instances.append(_Instance(registration, endpoint))
        log.info("driver connected", extra={"driver": self.name, "endpoint": endpoint.name})
        if self.status is not None:
            await self._notify(self.status)

    async def check(self) -> None:
        """Serve the kubelet while there is an instance, and for ``patience`` after it."""
        for each in [each for each in self._instances if each.has_ended]:
            self._instances.remove(each)
            await each.peer.close()
            log.info(
                "driver disconnected", extra={"driver": self.name, "endpoint": each.endpoint.name}
            )
        now = time.monotonic()
        if self._instances:
            self._served_at = now
            if not (self._servers and all(each.socket.exists() for each in self._servers)):
                await self._serve()
        elif self._servers and now - self._served_at > self._patience:
            log.error(
                "driver given up",
                extra={"driver": self.name, "patience_seconds": self._patience},
            )
            await self.stop()

    async def stop(self) -> None:
        """Stop serving the kubelet, the registration first."""
        self.status = None
        while self._servers:
            await self._servers.pop().stop()

    async def _serve(self) -> None:
        await self.stop()
        name = f"{_PREFIX}{os.urandom(4).hex()}"
        calls = {each: functools.partial(self._forward, each) for each in _CALLS}
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
        self.status = status
        await self._notify(status)
        return api.RegistrationStatusResponse().SerializeToString()

    async def _notify(self, status: bytes) -> None:
        """Report the kubelet's response to the newest instance; it counts as registered then."""
        if (instance := self._serving) is not None:
            method = f"/{_REGISTRATION}/NotifyRegistrationStatus"
            with contextlib.suppress(RpcFailed, TimeoutError):
                async with GrpcPeer(instance.registration) as peer, asyncio.timeout(_INFO_SECONDS):
                    await peer.call(method, status)

    async def _health(self) -> AsyncIterator[bytes]:
        """Forward one instance's health until it ends: the kubelet asks again after 5 s."""
        if (instance := self._serving) is not None:
            with contextlib.suppress(RpcFailed):
                async for each in instance.peer.stream(f"/{_HEALTH}/{_WATCH}"):
                    yield each

    async def _forward(self, method: str, request: bytes, _metadata: Mapping[str, str]) -> bytes:
        """Forward a call, again if its instance has ended.

        Raises:
            RpcFailed: the instance's own error, or none has responded in time.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while True:
                    if (instance := self._serving) is None:
                        await asyncio.sleep(_POLL_SECONDS)
                        continue
                    try:
                        return await instance.peer.call(f"/{_CLAIMS}/{method}", request)
                    except RpcFailed as failure:
                        await asyncio.sleep(_POLL_SECONDS)
                        if failure.code not in _UNANSWERED and not (
                            failure.code in _AMBIGUOUS and instance.has_ended
                        ):
                            raise
                        self.repeated += 1
                        log.info(
                            "driver called again",
                            extra={"driver": self.name, "call": method, "reason": str(failure)},
                        )
        except TimeoutError as error:
            waited = time.monotonic() - began
            raise RpcFailed(
                Code.UNAVAILABLE, f"driver {self.name} has not responded within {waited:.0f} s"
            ) from error


class Drivers:
    """Finds drivers by their registration sockets.

    Attributes:
        found: the drivers, by their names and services.
    """

    def __init__(self, folder: Path, registry: Path, *, patience: float) -> None:
        """Prepare; the arguments are those of :class:`ProxiedDriver`."""
        self.found: dict[tuple[str, ...], ProxiedDriver] = {}
        self._folder = folder
        self._registry = registry
        self._patience = patience
        self._known: set[Identity] = set()
        self._changed = asyncio.Event()

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

    async def stop(self) -> None:
        """Stop serving the kubelet."""
        for each in self.found.values():
            await each.stop()

    def problem(self) -> str:
        """Return why a driver is not registered with the kubelet; empty if all are."""
        for each in tuple(self.found.values()):
            if each.awaits_kubelet:
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
            async with GrpcPeer(registration) as peer, asyncio.timeout(_INFO_SECONDS):
                info = api.PluginInfo.FromString(await peer.call(f"/{_REGISTRATION}/GetInfo", b""))
        except TimeoutError as error:
            raise RpcFailed(Code.UNAVAILABLE, f"no response in {_INFO_SECONDS:g} s") from error
        except DecodeError as error:
            raise BadRegistration("its info cannot be read") from error
        if info.type != _TYPE or not info.name:
            raise BadRegistration(f"type: Unsupported value: {info.type[:64]!r}: must be {_TYPE}")
        endpoint = self._folder / Path(info.endpoint).name
        check_endpoint(self._folder, endpoint.name)
        key = (info.name, *info.supported_versions)
        if key not in self.found:
            self.found[key] = ProxiedDriver(
                info, folder=self._folder, registry=self._registry, patience=self._patience
            )
        await self.found[key].add(registration, endpoint)
