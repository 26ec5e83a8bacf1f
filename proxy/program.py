"""Assembles the proxy: watches folders, makes resources, and shuts down in order."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from proxy.folder import FolderWatch, identity
from proxy.kubelet import KUBELET_SOCKET, KubeletEndpoint, remove_left_behind
from proxy.registration import MOST_RESOURCES, Registration
from proxy.resource import ProxiedResource

log = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
HUNG_SECONDS = 60.0
"""An event loop that has not run for this long is taken for hung."""
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_STARTING = "not listening yet"
_AGAIN_SECONDS = 1.0


class Proxy:
    """The device plugin proxy of one node.

    Attributes:
        fronts: the servers for the kubelet, by name of the resource.
        registration: where plugins register.
    """

    def __init__(self, kubelet_dir: Path, plugin_dir: Path, *, patience: float) -> None:
        """Prepare.

        Args:
            kubelet_dir: the kubelet's device plugin directory.
            plugin_dir: where plugins register.
            patience: seconds that a call waits for a plugin and its response.

        Raises:
            SettingsError: both are the same folder.
        """
        if kubelet_dir.resolve() == plugin_dir.resolve():
            raise SettingsError(
                f"plugin-dir: Invalid value: {plugin_dir}: must not be the kubelet's own folder"
            )
        self.fronts: dict[str, KubeletEndpoint] = {}
        self._kubelet_dir = kubelet_dir
        self._plugin_dir = plugin_dir
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None
        self._beat_at = time.monotonic()
        self._stop = asyncio.Event()
        self._listening = asyncio.Event()
        self._problem = _STARTING
        self.registration = Registration(
            plugin_dir, front=self._front, forget=self._forget, spawn=self._spawn
        )

    async def run(self, *, on_beat: Callable[[], None] = lambda: None) -> None:
        """Serve until :meth:`stop`.

        Args:
            on_beat: called every few seconds while the event loop runs.

        Raises:
            BaseException: a bug in a task; the process must end.
        """
        remove_left_behind(self._kubelet_dir)
        watch = FolderWatch(self._look, (self._kubelet_dir, self._plugin_dir))
        for work in (self._beat(on_beat), self._listen(), watch.run()):
            self._spawn(work)
        await self._stop.wait()
        await self._end()
        if self._defect is not None:
            raise self._defect

    def stop(self) -> None:
        """End after the calls in progress have ended."""
        self._stop.set()

    def why_not_live(self) -> str:
        """Return why the process should be restarted; empty if it should not."""
        still = time.monotonic() - self._beat_at
        return f"the event loop stands still for {still:.0f} s" if still > HUNG_SECONDS else ""

    def why_not_ready(self) -> str:
        """Return what is not served as it should be; empty if all is."""
        if self._problem:
            return self._problem
        for name, front in tuple(self.fronts.items()):
            if front.resource.roster.serving is not None and not front.registered:
                return f"the kubelet does not know {name}: {front.refusal or 'there is none'}"
        return ""

    # --- inside ------------------------------------------------------------------------

    def _front(self, name: str) -> KubeletEndpoint | None:
        if name not in self.fronts:
            if len(self.fronts) >= MOST_RESOURCES:
                return None
            resource = ProxiedResource(
                name,
                patience=self._patience,
                spawn=self._spawn,
                on_change=lambda: self._look_at(name),
            )
            self.fronts[name] = KubeletEndpoint(self._kubelet_dir, resource, self._spawn)
            self._look_at(name)
        return self.fronts[name]

    def _forget(self, name: str) -> None:
        """Remove a resource that no plugin has ever served."""
        front = self.fronts.get(name)
        if front is not None and front.resource.unused:
            del self.fronts[name]
            self._spawn(front.stop())

    def _look(self) -> None:
        self._listening.set()
        for name in tuple(self.fronts):
            self._look_at(name)

    def _look_at(self, name: str) -> None:
        if name in self.fronts:
            self.fronts[name].check(identity(self._kubelet_dir / KUBELET_SOCKET))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._defect = defect
            self._stop.set()

    async def _listen(self) -> None:
        """Listen for plugins, again whenever the folder was emptied."""
        while True:
            self._listening.clear()
            try:
                await self.registration.listen()
            except OSError as error:
                if not self._problem or self._problem == _STARTING:
                    log.error("cannot listen for plugins", extra={"reason": str(error)})
                self._problem = str(error)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self._problem = ""
                await self._listening.wait()

    async def _beat(self, on_beat: Callable[[], None]) -> None:
        while True:
            self._beat_at = time.monotonic()
            on_beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def _end(self) -> None:
        until = time.monotonic() + _END_SECONDS
        calls = [each.calls for each in self.fronts.values()]
        while time.monotonic() < until and any(each.under_way for each in calls):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)  # once in a process's life: no event is needed
        await self.registration.stop()
        for front in self.fronts.values():
            await front.stop()
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), _END_SECONDS)
