"""Watches folders with sockets. Only this module imports ``inotify_simple``.

I/O: inotify and ``stat``. The event loop waits on inotify's descriptor. A check every two seconds
finds what inotify does not report: a folder that was deleted and created again.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from inotify_simple import INotify, flags

log = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
_BLIND_SECONDS = 0.1
"""Seconds between two checks while inotify is unavailable, or a folder is missing."""
_CHANGES = (
    flags.CREATE | flags.DELETE | flags.MOVED_TO | flags.MOVED_FROM
    | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
)  # fmt: skip

Identity = tuple[int, int, int]
"""Device, inode and modification time: an inode number can be used again."""


def identity(path: Path) -> Identity | None:
    """Return the identity of a file; ``None`` if there is no file."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def has_no_listener(path: Path) -> bool:
    """Return whether no process listens on a socket any more, or there is none."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)  # a full queue, where connecting would wait, means a listener
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


class FolderWatch:
    """Watches folders, which may be missing at first, emptied, or created again."""

    def __init__(self, changed: Callable[[], None], folders: tuple[Path, ...]) -> None:
        """Prepare.

        *changed* is called after every change in one of the folders, and every two seconds.
        """
        self._changed = changed
        self._watched: dict[Path, tuple[int, int] | None] = dict.fromkeys(folders)
        self._problems: dict[str, str] = {}
        self._missing = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                inotify = INotify(nonblocking=True)
            except OSError as error:  # the number of inotify instances is limited
                self._report(error, "inotify")
                self._changed()
                await asyncio.sleep(_BLIND_SECONDS)
            else:
                await self._watch(inotify)

    async def _watch(self, inotify: INotify) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(inotify.fileno(), self._read, inotify)
        try:
            while True:
                self._watch_new(inotify)
                self._changed()
                blind = None in self._watched.values()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BLIND_SECONDS if blind else _CHECK_SECONDS):
                        await self._missing.wait()
                        await asyncio.sleep(_BLIND_SECONDS)
                self._missing.clear()
        finally:
            loop.remove_reader(inotify.fileno())
            inotify.close()

    def _read(self, inotify: INotify) -> None:
        inotify.read(timeout=0)  # its events are not used, because the queue may overflow
        self._watch_new(inotify)
        self._changed()
        if None in self._watched.values():
            self._missing.set()

    def _watch_new(self, inotify: INotify) -> None:
        for folder, before in self._watched.items():
            try:
                status = folder.stat()
                if (status.st_dev, status.st_ino) == before:
                    continue
                inotify.add_watch(folder, _CHANGES)
            except OSError as error:
                self._watched[folder] = None
                self._report(error, str(folder))
            else:
                self._watched[folder] = status.st_dev, status.st_ino
                self._problems.pop(str(folder), None)

    def _report(self, error: OSError, what: str) -> None:
        if str(error) != self._problems.get(what):
            self._problems[what] = str(error)
            log.warning("cannot watch", extra={"path": what, "reason": str(error)})
