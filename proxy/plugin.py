"""One instance of a device plugin: its connection, its calls, and its lists of devices."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from google.protobuf.message import DecodeError

from common.kubelet_api import deviceplugin_pb2 as api
from proxy.errors import BadRegistration, Code, RpcFailed
from proxy.waiting import Instance

SERVICE = "v1beta1.DevicePlugin"

CONNECT_SECONDS = 3.0
"""A plugin must respond within this time; plugins usually wait 5 s for their registration."""
_LIST_SECONDS = 10.0
_RETRY_SECONDS = 0.02


class PluginInstance(Instance):
    """A device plugin that has registered, from its registration until its stream of lists ends.

    A plugin that registers again is another instance.

    Attributes:
        options: its ``DevicePluginOptions``, set by :meth:`connect`.
        devices: its newest ``ListAndWatchResponse``, set by the task that follows it.
    """

    def __init__(self, folder: Path, endpoint: str, number: int) -> None:
        super().__init__(folder / endpoint, SERVICE, number)
        self.options = b""
        self.devices = b""
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def connect(self) -> None:
        """Get the plugin's options, as the kubelet does inside a registration.

        Raises:
            RpcFailed: the plugin is unreachable, or does not respond.
            BadRegistration: its response cannot be read.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self.options = await self._options()
        except TimeoutError as error:
            raise RpcFailed(
                Code.UNAVAILABLE,
                f"the plugin at {self.endpoint} does not respond within {CONNECT_SECONDS:g} s",
            ) from error
        try:
            api.DevicePluginOptions.FromString(self.options)
        except DecodeError as error:
            raise BadRegistration(f"{self.endpoint}: its options cannot be read") from error

    async def _options(self) -> bytes:
        while True:
            try:
                return await self.call("GetDevicePluginOptions", b"")
            except RpcFailed as failure:
                if failure.code != Code.UNAVAILABLE:
                    raise
                # Between bind and listen a socket refuses connections; a kubelet dials again, too.
                await asyncio.sleep(_RETRY_SECONDS)

    async def lists(self) -> AsyncGenerator[bytes]:
        """Receive lists of devices, each checked, until the stream ends.

        Raises:
            RpcFailed: the stream ended with an error, or without any list.
            BadRegistration: a list cannot be read.
        """
        stream = self.peer.stream(f"/{SERVICE}/ListAndWatch")
        async with contextlib.aclosing(stream):
            yield _checked(await self._first(stream), self.endpoint)
            async for each in stream:
                yield _checked(each, self.endpoint)

    async def _first(self, stream: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                return await anext(stream)
        except StopAsyncIteration:
            reason = "ended its stream without a list"
        except TimeoutError:
            reason = f"sent no list within {_LIST_SECONDS:g} s"
        raise RpcFailed(Code.UNAVAILABLE, f"the plugin at {self.endpoint} {reason}")

    async def call(self, method: str, request: bytes) -> bytes:
        """Make one call, without a timeout; as :meth:`Instance.call`."""
        self._calls += 1
        self._idle.clear()
        try:
            return await super().call(method, request)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def test(self) -> None:
        """Get the options; as :meth:`Instance.test`."""
        await self.call("GetDevicePluginOptions", b"")

    async def close(self) -> None:
        """Disconnect after its calls have ended: a plugin that shuts down cleanly finishes them."""
        await self._idle.wait()
        await super().close()


def _checked(devices: bytes, endpoint: str) -> bytes:
    try:
        api.ListAndWatchResponse.FromString(devices)
    except DecodeError as error:
        raise BadRegistration(f"{endpoint}: its list of devices cannot be read") from error
    return devices


def unhealthy(devices: bytes) -> bytes:
    """Return the same list of devices, each of them Unhealthy.

    Args:
        devices: a ``ListAndWatchResponse`` that can be decoded.
    """
    response = api.ListAndWatchResponse.FromString(devices)
    for each in response.devices:
        each.health = "Unhealthy"
    return response.SerializeToString()
