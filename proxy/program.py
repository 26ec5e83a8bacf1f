"""Assembles the proxy: watches folders, makes resources, and shuts down in order."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from common.handover import POLL_SECONDS, hand_over
from common.kubelet_api import CHECKPOINT_FILE, KUBELET_SOCKET
from proxy.drivers import Drivers
from proxy.folder import FolderWatch, identity
from proxy.kubelet import KubeletEndpoint, remove_left_behind
from proxy.registration import MOST_RESOURCES, RegistrationService
from proxy.resource import ProxiedResource

log = logging.getLogger(__name__)

PLUGIN, DRA = "plugin", "dra"
REGISTRY = "plugins_registry"
"""The folder beside the kubelet's device plugin directory where drivers register."""
BEAT_SECONDS = 10.0
HUNG_SECONDS = 60.0
"""If the event loop has not run for this long, it counts as hung."""
_END_SECONDS = 3.0
_STARTING = "not listening yet"
_AGAIN_SECONDS = 1.0


class Proxy:
    """The device plugin proxy of one node.

    Attributes:
        endpoints: the servers for the kubelet, by name of the resource.
        registration: where plugins register.
        drivers: the drivers for Dynamic Resource Allocation.
    """

    def __init__(
        self, kubelet_dir: Path, plugin_dir: Path, *, patience: float, mode: str = PLUGIN
    ) -> None:
        """Prepare.

        Args:
            kubelet_dir: the kubelet's device plugin directory.
            plugin_dir: where plugins and drivers register.
            patience: seconds that a call waits for a plugin and its response.
            mode: what may register, :data:`PLUGIN` or :data:`DRA`. Never both: while a proxy serves
                a device plugin, the kubelet does not forget it.

        Raises:
            SettingsError: both are the same folder.
        """
        if kubelet_dir.resolve() == plugin_dir.resolve():
            raise SettingsError(
                f"plugin-dir: Invalid value: {plugin_dir}: must not be the kubelet's own folder"
            )
        self.endpoints: dict[str, KubeletEndpoint] = {}
        self._kubelet_dir = kubelet_dir
        self._plugin_dir = plugin_dir
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None
        self._clock: Callable[[], float] = time.monotonic  # then that of its event loop
        self._beat_at = self._clock()
        self._stop = asyncio.Event()
        self._listening = asyncio.Event()
        self._mode = mode
        self._problem = _STARTING if mode == PLUGIN else ""
        self.registration = RegistrationService(
            plugin_dir, endpoint_for=self._endpoint_for, forget=self._forget, spawn=self._spawn
        )

        self._registry = kubelet_dir.parent / REGISTRY
        self.drivers = Drivers(
            plugin_dir.absolute(), self._registry, patience=patience, spawn=self._spawn
        )

    async def run(self, *, on_beat: Callable[[], None] = lambda: None) -> None:
        """Serve until :meth:`stop`.

        *on_beat* is called every few seconds while the event loop runs.

        Raises:
            BaseException: a bug in a task; the process must end.
        """
        self._clock = asyncio.get_running_loop().time
        for folder in (self._kubelet_dir, self._plugin_dir, self._registry):
            remove_left_behind(folder)
        watch = FolderWatch(self._check_all, (self._kubelet_dir, self._plugin_dir))
        serve = self._listen() if self._mode == PLUGIN else self.drivers.run()
        for work in (self._beat(on_beat), serve, watch.run()):
            self._spawn(work)
        await self._stop.wait()
        await self._end()
        if self._defect is not None:
            raise self._defect

    def stop(self) -> None:
        """End after the calls in progress have ended."""
        self._stop.set()

    def liveness_problem(self) -> str:
        """Return why the process should be restarted; empty if it should not."""
        silent = self._clock() - self._beat_at
        return f"the event loop hangs for {silent:.0f} s" if silent > HUNG_SECONDS else ""

    def readiness_problem(self) -> str:
        """Return why the proxy is not ready; empty if it is."""
        if self._problem:
            return self._problem
        for name, endpoint in tuple(self.endpoints.items()):
            if endpoint.resource.roster.serving is not None and not endpoint.resource.registered:
                reason = endpoint.refusal or "no kubelet is running"
                return f"{name} is not registered with the kubelet: {reason}"
        return self.drivers.problem() if self._mode == DRA else ""

    # --- inside ------------------------------------------------------------------------

    def _endpoint_for(self, name: str) -> KubeletEndpoint | None:
        if name not in self.endpoints:
            if len(self.endpoints) >= MOST_RESOURCES:
                return None
            resource = ProxiedResource(
                name,
                patience=self._patience,
                spawn=self._spawn,
                on_change=lambda: self._check_resource(name),
            )
            self.endpoints[name] = KubeletEndpoint(self._kubelet_dir, resource, self._spawn)
            self._check_resource(name)
        return self.endpoints[name]

    def _forget(self, name: str) -> None:
        """Remove a resource that no plugin has ever served."""
        endpoint = self.endpoints.get(name)
        if endpoint is not None and endpoint.resource.unused:
            del self.endpoints[name]
            self._spawn(endpoint.stop())

    def _check_all(self) -> None:
        self._listening.set()
        self.drivers.check()
        for name in tuple(self.endpoints):
            self._check_resource(name)

    def _check_resource(self, name: str) -> None:
        if name in self.endpoints:
            self.endpoints[name].check(identity(self._kubelet_dir / KUBELET_SOCKET))

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
            self._beat_at = self._clock()
            on_beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def _end(self) -> None:
        """End without a failed pod, if the plugins can serve the kubelet themselves meanwhile."""
        served = [each for each in self.endpoints.values() if each.resource.registered]

        def leave() -> None:
            self.registration.leave()
            for each in served:
                each.stop_registering()

        if served:
            checkpoint = self._kubelet_dir / CHECKPOINT_FILE
            for step in hand_over(
                [each.resource for each in served],
                let_register=leave,
                checkpoint=lambda: identity(checkpoint),
            ):
                await _wait(*step)
        await _wait(
            lambda: (
                not self.drivers.under_way
                and not any(each.resource.under_way for each in self.endpoints.values())
            ),
            _END_SECONDS,
        )
        await self.registration.stop()
        await self.drivers.stop()
        for endpoint in self.endpoints.values():
            await endpoint.stop()
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), _END_SECONDS)


async def _wait(condition: Callable[[], bool], within: float) -> None:
    """Wait for a condition; only at the end of the process, so no event is needed."""
    clock = asyncio.get_running_loop().time
    until = clock() + within
    while not condition() and clock() < until:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
