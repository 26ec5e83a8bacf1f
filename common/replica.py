"""The frame of a program that follows the cluster: watches, threads, probes and metrics."""

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from common.apiserver.follower import Followers
from common.metrics import ProgramMetrics
from common.status import StatusServer, probe

log = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class Replica:
    """The watches and threads of one replica."""

    def __init__(
        self,
        followers: Followers,
        *,
        close: Callable[[], None],
        unlisted: str,
        wake: Callable[[], object] = lambda: None,
        **threads: Callable[[threading.Event], None],
    ) -> None:
        """Prepare; no request is sent before :meth:`start`.

        Args:
            followers: its watches; a thread starts them.
            close: closes its client of the API server.
            unlisted: why it is not ready until its watches are in step.
            wake: lets threads see that they are to end.
            threads: what its threads run, by their names, each until the Event is set.
        """
        self._followers = followers
        self._close = close
        self._unlisted = unlisted
        self._wake = wake
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=run, args=(self._stop,), name=name, daemon=True)
            for name, run in threads.items()
        ]

    def start(self) -> None:
        """Start the threads; returns at once."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """End all threads and watches; later calls do nothing."""
        if self._stop.is_set():
            return
        self.finish()
        self._stop.set()
        self._wake()
        self._followers.stop()
        self._close()

    def finish(self) -> None:
        """Finish what is in progress, before the threads end."""

    def broken(self) -> str:
        """Return why this replica must be restarted; empty if it need not.

        If a bug ends a thread, its last data would be used forever.
        """
        ended = self._followers.ended()
        if not self._stop.is_set():
            ended += [each.name for each in self._threads if each.ident and not each.is_alive()]
        return f"thread {ended[0]} has ended, see the log" if ended else ""

    def not_ready(self) -> str:
        """Return why this replica is not ready; empty if it is."""
        if self._stop.is_set():
            return "shutting down"
        return "" if self._followers.in_step else self._unlisted


class StatusReplica(Replica):
    """A replica that serves nothing but ``/healthz``, ``/readyz`` and ``/metrics``."""

    def __init__(
        self, followers: Followers, metrics: ProgramMetrics, *, host: str, port: int, **more: Any
    ) -> None:
        """Prepare; see :class:`Replica`. Port 0 is a free one."""
        super().__init__(followers, **more)
        self.metrics = metrics
        self._address = host, port
        self._http: StatusServer | None = None

    @property
    def http_port(self) -> int:
        """The port of probes and metrics; 0 before the start."""
        return 0 if self._http is None else self._http.port

    def start(self) -> None:
        """Serve probes and metrics, and start the threads; returns at once.

        Raises:
            SettingsError: the HTTP port cannot be bound.
        """
        pages = {
            "/healthz": probe(self.broken),
            "/readyz": probe(self.not_ready),
            "/metrics": lambda: (200, self.metrics.content_type, self.metrics.render()),
        }
        self._http = StatusServer(*self._address, pages, slow=["/metrics"])
        log.info("serving", extra={"http_port": self.http_port})
        super().start()

    def stop(self) -> None:
        """End all threads and watches, and the pages; later calls do nothing."""
        super().stop()
        for each in self._threads:
            if each.ident:
                each.join(_JOIN_SECONDS)
        if self._http is not None:
            self._http.stop()

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            SettingsError: the HTTP port cannot be bound.
        """
        ended = threading.Event()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: ended.set())
        self.start()
        ended.wait()
        self.stop()
