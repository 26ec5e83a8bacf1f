"""The worker process: one event loop with the connections. Its master starts and ends it."""

import asyncio
import contextlib
import gc
import os
import resource
import time

from gunicorn.workers.base import Worker

from common.serving.connections import Connections, Limits, State
from common.serving.listener import Listener
from common.serving.protocol import Service
from common.serving.settings import Application
from common.serving.tls import Change

DRAIN_SECONDS = 16.0
"""With the delay before it, within the 30 s that Kubernetes grants a pod by default."""

_TURN_SECONDS = 1.0
_SPARE_DESCRIPTORS = 64
# A decoded pod is hundreds of objects without a cycle among them: a search for cycles after
# every other request, as Python does by default, finds nothing.
_GARBAGE = 20_000


class HttpsWorker(Worker):  # type: ignore[misc]  # gunicorn has no type information
    """A worker process of gunicorn that serves HTTPS by asyncio."""

    app: Application

    def handle_exit(self, _sig: int, _frame: object) -> None:
        """Report "not ready" from now on: SIGTERM has arrived."""
        self.app.draining = True
        self.alive = False

    def run(self) -> None:
        """Serve until told to end, or until the master is gone; then drain."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        serving, certificate, metrics = self.app.serving, self.app.certificate, self.app.metrics
        metrics.certificate_ends(certificate.expires)
        limits = Limits(open_files(serving.connections), serving.buffered)
        connections = Connections(limits, clock=time.monotonic, observer=metrics)
        service = Service(
            connections,
            self.wsgi,
            keeps_alive=lambda: bool(self.alive) and self.app.keeps_connections(),
            largest_body=serving.largest_body,
        )
        listener = Listener(
            self.sockets,
            service,
            context=lambda: certificate.context,
            handshake_seconds=limits.seconds[State.HANDSHAKE],
        )
        woken = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.PIPE[0], _empty, self.PIPE[0], woken)
        settle_garbage()
        while self.alive:
            self._look_after(connections)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), _TURN_SECONDS)
            woken.clear()
        # Readiness is false and answers say "close" from now on. Requests are still accepted
        # until everybody has had the time to notice.
        ends = time.monotonic() + serving.drain_delay
        ending = asyncio.get_running_loop().run_in_executor(None, self.app.end)
        while (left := ends - time.monotonic()) > 0:
            self._look_after(connections)
            await asyncio.sleep(min(left, _TURN_SECONDS))
        self.notify()
        await listener.drain(DRAIN_SECONDS)
        await ending

    def _look_after(self, connections: Connections) -> None:
        """Do the tasks that are due about once a second."""
        self.notify()
        connections.end_overdue()
        certificate, metrics = self.app.certificate, self.app.metrics
        if (change := certificate.refresh()) is not Change.NONE:
            metrics.certificate_changed(change.value)
            metrics.certificate_ends(certificate.expires)
        if self.ppid != os.getppid():
            self.alive = False


def settle_garbage() -> None:
    """Collect garbage now, and seldom from now on: not while requests wait."""
    gc.collect()
    gc.freeze()  # what has been made by now stays
    gc.set_threshold(_GARBAGE)


def open_files(connections: int) -> int:
    """Raise the limit of open files as far as allowed; return how many connections it holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(connections, soft - _SPARE_DESCRIPTORS), 1)


def _empty(pipe: int, woken: asyncio.Event) -> None:
    """Read the bytes that a signal has written, and wake the worker."""
    with contextlib.suppress(OSError):
        os.read(pipe, 4096)
    woken.set()
