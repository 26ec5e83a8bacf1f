"""The kubelet's device plugin directory: which kubelet is there, and waiting for the next.

A kubelet that starts makes its socket anew and tries the node's pods anew (K11). Behind the device
plugin proxy nothing else tells of it: the registration with the proxy outlives the kubelet.
"""

import logging
import os
import select
import stat
import threading
from pathlib import Path

from inotify_simple import INotify, flags

from agent.kubelet.server import KUBELET_SOCKET

log = logging.getLogger(__name__)

# inotify tells of changes at once; this is how soon one is noticed that it did not tell of,
# such as a directory that was made anew.
LOOK_AGAIN_SECONDS = 2.0
# How soon the directory is looked for again while it cannot be watched.
_BLIND_SECONDS = 0.5
# What files come and go; not what is written into them.
_EVENTS = (
    *(flags.CREATE, flags.DELETE, flags.MOVED_FROM, flags.MOVED_TO),
    *(flags.DELETE_SELF, flags.MOVE_SELF, flags.ONLYDIR),
)


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return the identity of a file, ``None`` where it is not: inodes are reused, times are not."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns


class KubeletInstance:
    """Names the kubelet's lives, looked at before each call. Safe to share between threads."""

    def __init__(self, kubelet_dir: Path) -> None:
        """Know of no kubelet yet; *kubelet_dir* is its own device plugin directory, only read."""
        self._socket = kubelet_dir / KUBELET_SOCKET
        self._lock = threading.Lock()
        self._last = ""

    def current(self) -> str:
        """Return what names the kubelet's life; of one that is down, its last; empty before any."""
        now = identity(self._socket)
        if now is None:
            return self._last
        life = "-".join(map(str, now))
        with self._lock:
            before, self._last = self._last, life
        if before not in {"", life}:
            log.info("the kubelet has restarted")
        return life


class DirectoryWatch:
    """Waits for changes in a directory, which may come later, go, and come again.

    One thread waits; any thread may wake it.
    """

    def __init__(self, directory: Path) -> None:
        """Prepare; the directory is not looked at yet."""
        self._directory = directory
        self._watched: tuple[int, int, int] | None = None
        self._inotify: INotify | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make ``wait`` return; while nobody waits, the next one returns at once."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._woken, 1)

    def wait(self, seconds: float = LOOK_AGAIN_SECONDS) -> None:
        """Return after a change, after ``wake``, or after so many seconds; at times for nothing.

        A change between two waits ends the second at once.
        """
        if self._begin():
            return  # what changed before is not told of
        changes = select.poll()
        changes.register(self._woken, select.POLLIN)
        if self._inotify is None:
            seconds = min(seconds, _BLIND_SECONDS)
        else:
            changes.register(self._inotify, select.POLLIN)
        for descriptor, _ in changes.poll(min(seconds, LOOK_AGAIN_SECONDS) * 1000):
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
            elif self._inotify is not None:
                self._inotify.read(timeout=0)

    def close(self) -> None:
        """Stop watching; nobody may wait any more."""
        self._end()
        with self._lock:
            self._closed = True
            os.close(self._woken)

    def _begin(self) -> bool:
        """Watch the directory that is there now; tell whether it was not watched before."""
        there = identity(self._directory)
        if self._inotify is not None and there == self._watched:
            return False
        self._end()
        if there is None:
            return False
        try:
            self._inotify = inotify = INotify()
            inotify.add_watch(self._directory, sum(_EVENTS))
        except OSError as error:  # the directory went away, or inotify has no watches left
            log.warning("cannot watch the plugin directory", extra={"reason": str(error)})
            self._end()
            return False
        self._watched = there
        return True

    def _end(self) -> None:
        inotify, self._inotify, self._watched = self._inotify, None, None
        if inotify is not None:
            inotify.close()
