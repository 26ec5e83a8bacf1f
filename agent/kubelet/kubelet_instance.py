"""The kubelet's device plugin directory: identifies the running kubelet, and waits for changes.

A kubelet that starts makes a new socket and admits the node's pods again (K11). Behind the device
plugin proxy there is no other sign of a restart: the agent stays registered with the proxy.
"""

import logging
import math
import os
import select
import stat
import threading
from pathlib import Path

from inotify_simple import INotify, flags

from common.kubelet_api import KUBELET_SOCKET

log = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
_UNWATCHED_SECONDS = 0.5
# Files that are made, renamed or removed; not writes into them.
_EVENTS = (
    *(flags.CREATE, flags.DELETE, flags.MOVED_FROM, flags.MOVED_TO),
    *(flags.DELETE_SELF, flags.MOVE_SELF, flags.ONLYDIR),
)


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return the identity of a file, or ``None`` if it does not exist.

    Inode numbers are reused, so the identity of a file includes its change time.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns


class KubeletInstance:
    """Identifies the kubelet's instances. Safe to share between threads."""

    def __init__(self, kubelet_dir: Path) -> None:
        """Start without a kubelet; *kubelet_dir* is its device plugin directory, only read."""
        self._socket = kubelet_dir / KUBELET_SOCKET
        self._lock = threading.Lock()
        self._last = ""

    def current(self) -> str:
        """Return a name for the running kubelet instance.

        While none runs, return the last one's; empty if there was none.
        """
        now = identity(self._socket)
        if now is None:
            return self._last
        instance = "-".join(map(str, now))
        with self._lock:
            before, self._last = self._last, instance
        if before not in {"", instance}:
            log.info("the kubelet has restarted")
        return instance


class DirectoryWatch:
    """Waits for changes in a directory, which may be missing, removed and made again.

    One thread waits; any thread may wake it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        check: float = _CHECK_SECONDS,
        unwatched: float = _UNWATCHED_SECONDS,
    ) -> None:
        """Prepare; nothing is watched yet.

        Args:
            directory: what is watched.
            check: longest wait, in seconds. inotify reports changes at once, but for example not
                a directory that was removed and made again.
            unwatched: the same while the directory cannot be watched.
        """
        self._directory = directory
        self._check, self._unwatched = check, unwatched
        self._watched: tuple[int, int, int] | None = None
        self._inotify: INotify | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make ``wait`` return; if no thread waits, the next ``wait`` returns at once."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._woken, 1)

    def wait(self, seconds: float = math.inf) -> None:
        """Return after a change, after ``wake``, or after so many seconds; sometimes without cause.

        A change between two waits ends the second one at once.
        """
        if self._watch_directory():
            return  # inotify does not report earlier changes
        changes = select.poll()
        changes.register(self._woken, select.POLLIN)
        if self._inotify is None:
            seconds = min(seconds, self._unwatched)
        else:
            changes.register(self._inotify, select.POLLIN)
        for descriptor, _ in changes.poll(min(seconds, self._check) * 1000):
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
            elif self._inotify is not None:
                self._inotify.read(timeout=0)

    def close(self) -> None:
        """Stop watching; ``wait`` must not be called any more."""
        self._stop_watching()
        with self._lock:
            self._closed = True
            os.close(self._woken)

    def _watch_directory(self) -> bool:
        """Watch the directory that exists now; return whether it was not watched before."""
        found = identity(self._directory)
        if self._inotify is not None and found == self._watched:
            return False
        self._stop_watching()
        if found is None:
            return False
        try:
            self._inotify = inotify = INotify()
            inotify.add_watch(self._directory, sum(_EVENTS))
        except OSError as error:  # the directory went away, or inotify has no watches left
            log.warning("cannot watch the plugin directory", extra={"reason": str(error)})
            self._stop_watching()
            return False
        self._watched = found
        return True

    def _stop_watching(self) -> None:
        inotify, self._inotify, self._watched = self._inotify, None, None
        if inotify is not None:
            inotify.close()
