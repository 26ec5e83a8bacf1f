"""The thread that updates the folder of driver files when the host's driver changes."""

import logging
import threading
from collections.abc import Callable

from agent.driver.folder import DriverFolder
from agent.driver.host import Host
from agent.errors import DriverFilesError

log = logging.getLogger(__name__)


class DriverUpdater:
    """Copies the host's driver files into the folder, and again when the driver changes.

    Attributes:
        ready: set once containers find a driver.
        problem: why the folder does not have the host's current driver; empty if it has.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        source: Host,
        folder: DriverFolder,
        *,
        idle: Callable[[], bool],
        on_result: Callable[[bool], None] = lambda _right: None,
        check: float = 30.0,
        retry: float = 5.0,
    ) -> None:
        """Prepare, and check whether the folder of an earlier agent is usable.

        *idle* returns whether no container of the node has a GPU. *on_result* is called after each
        update with whether the folder has the host's current driver. The next update follows after
        *check* seconds, with a problem after *retry* seconds.
        """
        self._source = source
        self._folder = folder
        self._idle = idle
        self._on_result = on_result
        self._check, self._retry = check, retry
        self.ready = threading.Event()
        self.problem = "driver-dir: the host's driver files are not laid out yet"
        if folder.usable:
            self.ready.set()

    def run(self, stop: threading.Event) -> None:
        """Update the folder periodically until *stop* is set."""
        while True:
            self.update()
            if stop.wait(self._retry if self.problem else self._check):
                return

    def update(self) -> None:
        """Update the folder once; log a problem if it is new."""
        problem = ""
        try:
            layout = self._source.find_files()
            if self._folder.lay_out(layout, self._source.open):
                extra = {"driver": layout.version, "files": len(layout.files)}
                log.info("laid out driver files", extra=extra)
            if removed := self._folder.prune(idle=self._idle()):
                log.info("removed old driver files", extra={"generations": removed})
        except DriverFilesError as error:
            problem = str(error)
            if problem != self.problem:
                log.warning("driver files are not updated", extra={"reason": problem})
        self.problem = problem
        if self._folder.usable:
            self.ready.set()
        self._on_result(not problem)
