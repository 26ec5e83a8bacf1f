"""The thread that updates the folder of driver files when the host's driver changes."""

import logging
import threading
from collections.abc import Callable

from agent.driver.folder import DriverFolder
from agent.driver.host import Host
from agent.errors import DriverFilesError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0
_RETRY_SECONDS = 5.0


class DriverUpdater:
    """Lays the host's driver files out, and again when the driver has changed.

    Attributes:
        ready: set once containers find a driver.
        problem: why the folder is not that of the host's driver; empty when it is.
    """

    def __init__(
        self,
        source: Host,
        folder: DriverFolder,
        *,
        idle: Callable[[], bool],
        on_result: Callable[[bool], None] = lambda _right: None,
    ) -> None:
        """Check only whether an earlier agent has laid files out.

        *idle* tells whether no container of the node has a GPU; *on_result* is told after each
        look whether the folder is that of the host's driver.
        """
        self._source = source
        self._folder = folder
        self._idle = idle
        self._on_result = on_result
        self.ready = threading.Event()
        self.problem = "driver-dir: the host's driver files are not laid out yet"
        if folder.usable:
            self.ready.set()

    def run(self, stop: threading.Event) -> None:
        """Look until *stop* is set."""
        while True:
            self.update()
            if stop.wait(_RETRY_SECONDS if self.problem else _LOOK_SECONDS):
                return

    def update(self) -> None:
        """Look once; what goes wrong is logged when it is new."""
        problem = ""
        try:
            layout = self._source.find_files()
            if self._folder.lay_out(layout, self._source.open):
                extra = {"driver": layout.version, "files": len(layout.files)}
                log.info("laid out driver files", extra=extra)
            if gone := self._folder.prune(idle=self._idle()):
                log.info("removed old driver files", extra={"generations": gone})
        except DriverFilesError as error:
            problem = str(error)
            if problem != self.problem:
                log.warning("driver files are not renewed", extra={"reason": problem})
        self.problem = problem
        if self._folder.usable:
            self.ready.set()
        self._on_result(not problem)
