"""One resource: follows its plugins, and streams their list of devices to the kubelet."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from common.known_resources import HIDDEN_SECONDS, SHOWN_LATE
from proxy.errors import Code, RpcFailed
from proxy.roster import Roster, unhealthy

log = logging.getLogger(__name__)

MOST_PLUGINS = 16
"""Most registrations of one resource that are followed at a time."""

_TEST_CALL_SECONDS = 1.0
_AGAIN_SECONDS = 0.5

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Starts a task and keeps a reference to it, which asyncio does not."""


class ConnectedPlugin(Protocol):
    """The part of :class:`proxy.plugin.Plugin` that is used here."""

    endpoint: str
    number: int
    options: bytes
    ended: asyncio.Event

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        ...

    async def connect(self) -> None:
        """Dial it, and get its options."""
        ...

    def lists(self) -> AsyncIterator[bytes]:
        """Receive its lists of devices."""
        ...

    async def call(self, method: str, request: bytes) -> bytes:
        """Make one call."""
        ...

    async def close(self) -> None:
        """Disconnect after its calls have ended."""
        ...


class ProxiedResource:
    """One resource name and its plugins.

    Attributes:
        name: name of the resource, as in a pod's limits.
        patience: seconds that a call waits for a plugin and its response.
        roster: its plugins.
        streams: number of streams that the kubelet has opened.
        streaming: whether the newest stream is open.
        hidden: whether the kubelet gets every device as Unhealthy, because it may not know the
            plugin's other resources yet: it would give a container this one alone (K11).
    """

    def __init__(
        self,
        name: str,
        *,
        patience: float,
        spawn: Spawn,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start without a plugin.

        Args:
            name: name of the resource, as in a pod's limits.
            patience: seconds that a call waits for a plugin and its response.
            spawn: starts a task and keeps a reference to it.
            on_change: called when the plugins have changed, or the kubelet's stream.
        """
        self.name = name
        self.roster: Roster[ConnectedPlugin] = Roster()
        self.streams = 0
        self.streaming = False
        self.hidden = False
        self._ending = False
        self.patience = patience
        self._spawn = spawn
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._giving_up: asyncio.TimerHandle | None = None
        self._revealing: asyncio.TimerHandle | None = None
        self._listening: set[ConnectedPlugin] = set()
        self._following: dict[ConnectedPlugin, asyncio.Task[Any]] = {}

    @property
    def unused(self) -> bool:
        """Whether no plugin has ever served it, and none is being connected."""
        return self.roster.devices is None and not self._following

    # --- plugins -------------------------------------------------------------------------

    async def follow(self, plugin: ConnectedPlugin, connected: asyncio.Event) -> None:
        """Follow a plugin until its stream ends, or a newer registration replaces it.

        Args:
            plugin: the newly registered plugin.
            connected: set when its first list has arrived.

        Raises:
            RpcFailed: it could not be connected, and never served.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine runs in one
        reason = ""
        try:
            if len(self._following) >= MOST_PLUGINS:
                raise RpcFailed(
                    Code.RESOURCE_EXHAUSTED,
                    f"{MOST_PLUGINS} plugins of {self.name} are registered already",
                )
            self._following[plugin] = task
            await plugin.connect()
            async for devices in plugin.lists():
                self.roster.set_devices(plugin, plugin.number, plugin.options, devices)
                if not connected.is_set():
                    connected.set()
                    self._replace(plugin)
                    self.log("plugin connected", plugin)
                self._update()
            reason = "its stream ended"
        except RpcFailed as failure:
            reason = str(failure) if connected.is_set() else ""
            if not reason:
                raise
        finally:
            self._following.pop(plugin, None)
            if reason:  # otherwise it has registered again, and still runs
                plugin.ended.set()
            self.roster.leave(plugin)
            self._update()
            self._spawn(plugin.close())
            if reason:
                self.log("plugin disconnected", plugin, reason=reason)

    def _replace(self, plugin: ConnectedPlugin) -> None:
        """End earlier registrations of the same socket: their server no longer listens there."""
        for each, task in tuple(self._following.items()):
            if each.endpoint == plugin.endpoint and each.number < plugin.number:
                self.roster.leave(each)
                task.cancel()
                self.log("plugin disconnected", each, reason="registered again")

    def _update(self) -> None:
        """Wake all waiting tasks; start the timer of patience if no plugin serves."""
        if self.roster.serving is not None:
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        else:
            if self._giving_up is None and not self.roster.given_up:
                loop = asyncio.get_running_loop()
                self._giving_up = loop.call_later(self.patience, self._give_up)
            self._listen(*self.roster.silent)
        self.notify()
        self._on_change()

    def _give_up(self) -> None:
        self._giving_up = None
        self.roster.give_up()
        if self.roster.given_up:
            self._log_given_up()
            self._update()

    def _log_given_up(self) -> None:
        log.error(
            "devices given up",
            extra={"resource": self.name, "patience_seconds": self.patience},
        )

    # --- plugins that do not respond -----------------------------------------------------

    async def check_silent(self, plugin: ConnectedPlugin) -> None:
        """Stop using a plugin that left a call unanswered, unless it responds to a new one."""
        if plugin not in self.roster or await self._responds(plugin, _TEST_CALL_SECONDS):
            return
        if not self.roster.mark_silent(plugin):
            return
        self.log("plugin silent", plugin, patience_seconds=self.patience)
        if self.roster.given_up:
            self._log_given_up()
        self._update()
        self._listen(plugin)

    def _listen(self, *plugins: ConnectedPlugin) -> None:
        for each in plugins:
            if each not in self._listening:
                self._listening.add(each)
                self._spawn(self._listen_for(each))

    def _would_serve(self, plugin: ConnectedPlugin) -> bool:
        serving = self.roster.serving
        return plugin in self.roster and (serving is None or serving.number < plugin.number)

    async def _listen_for(self, plugin: ConnectedPlugin) -> None:
        """Use a silent plugin again when it responds, unless a newer one serves."""
        try:
            while self._would_serve(plugin):
                if await self._responds(plugin, self.patience) and self._would_serve(plugin):
                    self.roster.mark_responding(plugin)
                    self.log("plugin responds again", plugin)
                    self._update()
                    return
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._listening.discard(plugin)

    async def _responds(self, plugin: ConnectedPlugin, within: float) -> bool:
        """Return whether a plugin responds, also with an error."""
        try:
            async with asyncio.timeout(within):
                await plugin.call("GetDevicePluginOptions", b"")
        except TimeoutError:
            return False
        except RpcFailed as failure:
            return failure.code not in {Code.UNAVAILABLE, Code.CANCELLED}
        return True

    # --- the kubelet's stream ----------------------------------------------------------

    def hide(self) -> None:
        """Report every device as Unhealthy until :meth:`reveal`."""
        self.reveal()
        self.hidden = True
        loop = asyncio.get_running_loop()
        self._revealing = loop.call_later(HIDDEN_SECONDS, self._reveal_late)

    def reveal(self) -> None:
        """Report devices as the plugin does."""
        if self._revealing is not None:
            self._revealing.cancel()
            self._revealing = None
        self.hidden = False
        self.notify()

    def _reveal_late(self) -> None:
        log.warning(SHOWN_LATE, extra={"resource": self.name, "seconds": HIDDEN_SECONDS})
        self.reveal()

    async def list_and_watch(self) -> AsyncIterator[bytes]:
        """Send the list of devices whenever it changes, until the kubelet disconnects.

        The same list is not sent again when a plugin returns: the kubelet would write its
        checkpoint, even in the middle of a container's admission.
        """
        self.streams += 1
        number = self.streams
        sent: bytes | None = None
        self.streaming = True
        self._update()
        try:
            while not self._ending:
                changed = self._changed
                devices = self.roster.devices
                if devices is not None and self.hidden:
                    devices = unhealthy(devices)
                if devices is not None and devices != sent:
                    sent = devices
                    yield devices
                else:
                    await changed.wait()
        finally:
            if number == self.streams:
                self.streaming = False
                self._update()

    def end_streams(self) -> None:
        """End the kubelet's streams."""
        self._ending = True
        self.notify()

    def notify(self) -> None:
        """Wake all tasks that wait for a condition."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait until a condition holds, checked after every change; return whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not condition():
                    await self._changed.wait()
        return condition()

    def log(self, message: str, plugin: ConnectedPlugin, **fields: object) -> None:
        """Log a line about a plugin."""
        log.info(message, extra={"resource": self.name, "endpoint": plugin.endpoint, **fields})
