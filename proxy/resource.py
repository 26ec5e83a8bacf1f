"""One resource of a device plugin: follows its plugins, and streams their devices to the kubelet.

The kubelet admits one pod at a time and waits for a response without limit (PreStartContainer:
30 s), so a call has ``patience`` for an instance and its response together.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from proxy.errors import Code, RpcFailed
from proxy.plugin import PluginInstance, unhealthy
from proxy.waiting import LogTexts, ProxiedService, Spawn

MOST_PLUGINS = 16
"""Most registrations of one resource that are followed at a time."""


class ProxiedResource(ProxiedService[PluginInstance]):
    """One resource name and its plugins.

    Attributes:
        held: number of calls that wait for :meth:`release` while the kubelet admits a pod.
        streams: number of streams that the kubelet has opened.
        streaming: whether the newest stream is open.
        hidden: whether the kubelet gets every device as Unhealthy, because it may not know the
            plugin's other resources yet: it would give a container this one alone (K11).
    """

    texts = LogTexts(
        field="resource",
        connected="plugin connected",
        disconnected="plugin disconnected",
        silent="plugin silent",
        responding="plugin responds again",
        waiting="calls wait for a plugin",
        repeated="call sent again",
        given_up="devices given up",
    )

    def __init__(
        self,
        name: str,
        *,
        patience: float,
        spawn: Spawn,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start without a plugin; the arguments are those of :class:`ProxiedService`."""
        super().__init__(name, patience=patience, spawn=spawn, on_change=on_change)
        self.held = 0
        self.streams = 0
        self.streaming = False
        self.hidden = False
        self._ending = False
        self._open = asyncio.Event()
        self._open.set()
        self._following: dict[PluginInstance, asyncio.Task[None]] = {}

    @property
    def unused(self) -> bool:
        """Whether no plugin has ever served it, and none is being connected."""
        return self.roster.last is None and not self._following

    @property
    def options(self) -> bytes:
        """The ``DevicePluginOptions`` of the plugin that serves, or served last."""
        return b"" if self.roster.last is None else self.roster.last.options

    # --- plugins -------------------------------------------------------------------------

    async def follow(self, plugin: PluginInstance, connected: asyncio.Event) -> None:
        """Follow a plugin until its stream ends, or a newer registration replaces it.

        *connected* is set when its first list has arrived.

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
                plugin.devices = devices
                if not connected.is_set():
                    self.roster.join(plugin, plugin.number)
                    connected.set()
                    self._replace(plugin)
                    self.log(self.texts.connected, plugin)
                self.update()
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
            self.update()
            self._spawn(plugin.close())
            if reason:
                self.log(self.texts.disconnected, plugin, reason=reason)

    def _replace(self, plugin: PluginInstance) -> None:
        """End earlier registrations of the same socket: their server no longer listens there."""
        for each, task in tuple(self._following.items()):
            if each.endpoint == plugin.endpoint and each.number < plugin.number:
                self.roster.leave(each)
                task.cancel()
                self.log(self.texts.disconnected, each, reason="registered again")

    # --- the kubelet's calls -----------------------------------------------------------

    async def call(self, method: str, request: bytes, _metadata: Mapping[str, str]) -> bytes:
        """Forward a call to the plugin that serves.

        Raises:
            RpcFailed: the plugin's own error, or no plugin has responded in time.
        """
        if method == "GetDevicePluginOptions":
            # The kubelet calls this inside a registration, which must not wait for a plugin.
            return self.options
        in_admission = method != "PreStartContainer"
        with self.counting_call():
            self.held += in_admission
            try:
                await self._open.wait()
            finally:
                self.held -= in_admission
            return await self.forward(method, request)

    def overdue(self, method: str, waited: float) -> str:
        """Return the error of a call without a response, as :meth:`ProxiedService.overdue`."""
        del waited
        text = f"the device plugin of {self.name} "
        if method:
            return text + f"has not responded to {method} within {self.patience:g} s"
        if self.roster.given_up:
            return text + f"has been unavailable for more than {self.patience:g} s"
        # for less, but the call was sent to an earlier plugin before
        return text + f"is unavailable, and the call has taken {self.patience:g} s"

    def hold(self) -> None:
        """Let new calls wait: the kubelet admits no other pod meanwhile."""
        self._open.clear()

    def release(self) -> None:
        """Forward the held calls."""
        self._open.set()

    # --- the kubelet's stream ----------------------------------------------------------

    def set_hidden(self, *, hidden: bool) -> None:
        """Report every device as Unhealthy, or devices as the plugin does."""
        self.hidden = hidden
        self.notify()

    def _devices(self) -> bytes | None:
        """Return the list for the kubelet: that of the plugin that serves, or served last."""
        if self.roster.last is None:
            return None
        devices = self.roster.last.devices
        return unhealthy(devices) if self.hidden or self.roster.given_up else devices

    async def list_and_watch(self) -> AsyncIterator[bytes]:
        """Send the list of devices whenever it changes, until the kubelet disconnects.

        The same list is not sent again when a plugin returns: the kubelet would write its
        checkpoint, even in the middle of a container's admission.
        """
        self.streams += 1
        number = self.streams
        sent: bytes | None = None
        self.streaming = True
        self.update()
        try:
            while not self._ending:
                changed = self._changed
                devices = self._devices()
                if devices is not None and devices != sent:
                    sent = devices
                    yield devices
                else:
                    await changed.wait()
        finally:
            if number == self.streams:
                self.streaming = False
                self.update()

    def end_streams(self) -> None:
        """End the kubelet's streams."""
        self._ending = True
        self.notify()
