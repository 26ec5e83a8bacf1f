"""Forwards the kubelet's calls for one resource to the plugin that serves it.

If there is no plugin, or the plugin ends during a call, the call waits for the next plugin and is
sent again. The kubelet admits one pod at a time and waits for a response without limit
(PreStartContainer: 30 s), so every wait ends after ``patience``, with an error.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from proxy.errors import Code, RpcFailed
from proxy.resource import ConnectedPlugin, ProxiedResource
from proxy.waits import MOST_CALLS, CallWaits

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Longest wait for the end of a plugin's stream: it may come after the end of its calls."""

_BROKEN = frozenset({Code.UNAVAILABLE, Code.CANCELLED})
"""Status of a call if its plugin ends. A running plugin may return these as well."""
_AMBIGUOUS = _BROKEN | {Code.UNKNOWN, Code.INTERNAL}
"""Status that a call may get from a plugin that is ending; any other is a real response."""


class ProxiedCalls:
    """The calls of one resource.

    Attributes:
        under_way: number of calls in progress.
        repeated: number of calls that were sent again because their plugin had ended.
        unanswered: number of calls that ended without a plugin's response.
        held: number of calls that wait for :meth:`release` while the kubelet admits a pod.
        waits: the calls that wait for a plugin.
    """

    def __init__(self, resource: ProxiedResource) -> None:
        """Forward calls to the plugins of *resource*."""
        self.under_way = 0
        self.repeated = 0
        self.unanswered = 0
        self.held = 0
        self.waits = CallWaits()
        self._open = asyncio.Event()
        self._open.set()
        self._resource = resource

    async def call(self, method: str, request: bytes, _metadata: Mapping[str, str]) -> bytes:
        """Forward a call; wait for a plugin and send it again until patience is over.

        Args:
            method: its name, such as ``Allocate``.
            request: forwarded unchanged.

        Raises:
            RpcFailed: the plugin's own error, or no plugin has responded in time.
        """
        if method == "GetDevicePluginOptions":
            # The kubelet calls this inside a registration, which must not wait for a plugin.
            return self._resource.roster.options
        if self.under_way >= MOST_CALLS:
            raise RpcFailed(
                Code.RESOURCE_EXHAUSTED,
                f"{MOST_CALLS} calls for {self._resource.name} are under way in the device plugin "
                "proxy",
            )
        self.under_way += 1
        in_admission = method != "PreStartContainer"
        try:
            self.held += in_admission
            try:
                await self._open.wait()
            finally:
                self.held -= in_admission
            return await self._forward(method, request)
        finally:
            self.under_way -= 1

    def hold(self) -> None:
        """Let new calls wait: the kubelet admits no other pod meanwhile."""
        self._open.clear()

    def release(self) -> None:
        """Forward the held calls."""
        self._open.set()

    async def _forward(self, method: str, request: bytes) -> bytes:
        until = time.monotonic() + self._resource.patience
        while True:
            plugin = self._resource.roster.serving
            if plugin is None:
                await self._wait_for_plugin(until - time.monotonic())
                continue
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    return await plugin.call(method, request)
            except TimeoutError as error:
                await self._resource.check_silent(plugin)
                raise self._without_response(
                    f"the device plugin of {self._resource.name} has not responded to {method} "
                    f"within {self._resource.patience:g} s",
                ) from error
            except RpcFailed as failure:
                if not await self._plugin_has_ended(plugin, failure):
                    raise
                if time.monotonic() > until:
                    self.unanswered += 1
                    raise
                self.repeated += 1
                self._resource.log("call sent again", plugin, call=method, reason=str(failure))

    async def _wait_for_plugin(self, within: float) -> None:
        """Wait until a plugin serves.

        Raises:
            RpcFailed: no plugin has connected in time.
        """
        resource = self._resource
        if not self.waits.waiting and not resource.roster.given_up:
            log.warning("calls wait for a plugin", extra={"resource": resource.name})
        with self.waits.wait():
            await resource.until(
                lambda: resource.roster.serving is not None or resource.roster.given_up, within
            )
        if resource.roster.serving is None:
            text = f"the device plugin of {resource.name} "
            if resource.roster.given_up:
                text += f"has been unavailable for more than {resource.patience:g} s"
            else:  # for less, but the call was sent to an earlier plugin before
                text += f"is unavailable, and the call has taken {resource.patience:g} s"
            raise self._without_response(text)

    def _without_response(self, text: str) -> RpcFailed:
        self.unanswered += 1
        return RpcFailed(Code.UNAVAILABLE, text)

    async def _plugin_has_ended(self, plugin: ConnectedPlugin, failure: RpcFailed) -> bool:
        """Return whether a call failed because its plugin ended, not by the plugin's response."""

        def has_ended() -> bool:
            return plugin.ended.is_set() or self._resource.roster.serving is not plugin

        if failure.code in _BROKEN:
            return await self._resource.until(has_ended, SETTLE_SECONDS) or not plugin.connected
        return failure.code in _AMBIGUOUS and plugin.ended.is_set()
