"""The kubelet's connections: found in an old agent, held open in the new one.

The kubelet drops a plugin when the stream of an *earlier* registration breaks (K18). So the
connections over which an old agent streamed must stay open for as long as the kubelet lives,
though nobody answers on them: they are handed on as open files, from agent to agent.
"""

import contextlib
import errno
import logging
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

_SELF = Path("/proc/self/fd")
_TASKS = Path("/proc/self/task")
_EPOLL = "anon_inode:[eventpoll]"
_MOST_BYTES = 64 * 1024
_FRAME_HEADER = 9
_SLEEP_WITHIN_SECONDS = 0.5
_LOOK_SECONDS = 0.001


def _never(_length: int) -> bool:
    return False


_UPKEEP: Mapping[int, Callable[[int], bool]] = {
    0x4: lambda length: length % 6 == 0,  # SETTINGS
    0x6: lambda length: length == 8,  # PING
    0x8: lambda length: length == 4,  # WINDOW_UPDATE
}
"""Which types of frames are upkeep, and how long such a frame can be."""


def accepted_on(sockets: Collection[Path]) -> list[int]:
    """Find this process's connections that were accepted on *sockets*.

    gRPC does not tell of them. A connected socket is known by its own name, which is the name
    of the socket that it was accepted on.

    Returns:
        Descriptors, which still belong to whoever accepted them.
    """
    names = {str(each) for each in sockets}
    found = []
    for descriptor in _descriptors("socket:"):
        with contextlib.suppress(OSError), _borrowed(descriptor) as each:
            if (
                each.family == socket.AF_UNIX
                and each.getsockname() in names
                and not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            ):
                found.append(descriptor)
    return sorted(found)


def stop_reading(descriptors: Collection[int]) -> None:
    """Stop gRPC from reading *descriptors*, and wait until it does not.

    What arrives later stays in the kernel, where a successor finds it: a call that gRPC had
    read would be answered by nobody, and the kubelet waits without limit. A thread of gRPC may
    have been woken before and not have read yet, hence the wait.
    """
    for poller in _descriptors(_EPOLL):
        # Borrowed: it belongs to gRPC. epoll objects close what they were made of, hence dup.
        with contextlib.suppress(OSError), select.epoll.fromfd(os.dup(poller)) as each:
            for descriptor in descriptors:
                try:
                    each.unregister(descriptor)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.EBADF):
                        raise
    _await_sleep(_SLEEP_WITHIN_SECONDS)


def _await_sleep(within: float) -> None:
    """Wait until two looks find every other thread of this process asleep, or *within* seconds."""
    until, found = time.monotonic() + within, 0
    while found < 2 and time.monotonic() < until:
        found = 0 if _others_run() else found + 1
        time.sleep(_LOOK_SECONDS)


def _others_run() -> bool:
    """Return whether another thread of this process runs, or waits for a processor only.

    proc_pid_stat(5): the state follows the name, which is in parentheses.
    """
    own = threading.get_native_id()
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != own:
                return True
    return False


def is_upkeep(data: bytes) -> bool:
    """Return whether this is HTTP/2's own upkeep, which nobody waits to see answered.

    Both sides of a connection measure it with pings and open their windows; an answer to one of
    these may come after an agent has gone. RFC 9113, sections 4.1, 6.5, 6.7 and 6.9.

    Args:
        data: whole frames, unless the agent that is gone had read a part.
    """
    while data:
        length, kind = int.from_bytes(data[:3]), data[3] if len(data) > 3 else -1
        if len(data) < _FRAME_HEADER + length or not _UPKEEP.get(kind, _never)(length):
            return False
        data = data[_FRAME_HEADER + length :]
    return True


class HeldConnections:
    """Connections that are kept open and unread, each until something arrives on it."""

    def __init__(self, on_broken: Callable[[], None] = lambda: None) -> None:
        """Hold none.

        Args:
            on_broken: told when bytes arrived on one, which was closed for it: the kubelet
                meant to call an agent that is gone, and drops whoever is registered now (K18).
        """
        self.on_broken = on_broken
        self._lock = threading.Lock()
        self._held: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None

    @property
    def descriptors(self) -> list[int]:
        """The connections that are open."""
        with self._lock:
            return sorted(self._held)

    def hold(self, descriptors: Iterable[int]) -> None:
        """Take connections over, and watch them from now on."""
        with self._lock:
            for descriptor in descriptors:
                try:
                    connection = socket.socket(fileno=descriptor)
                except OSError as error:
                    log.warning("no connection", extra={"reason": str(error)})
                    os.close(descriptor)
                    continue
                self._held[descriptor] = connection
                self._selector.register(connection, selectors.EVENT_READ, connection)
            if self._held and self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="held-connections", daemon=True
                )
                self._thread.start()

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select():
                connection: socket.socket = key.data
                try:
                    came = connection.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except OSError:
                    came = b""
                if came and is_upkeep(came):
                    continue
                with self._lock:
                    self._selector.unregister(connection)
                    del self._held[key.fd]
                # Others may have this file open too (an old agent that is about to exit).
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
                if came:
                    log.warning("the kubelet called an agent that is gone")
                    self.on_broken()


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def _descriptors(kind: str) -> list[int]:
    """List this process's descriptors whose files begin with *kind*."""
    found = []
    for each in _SELF.iterdir():
        with contextlib.suppress(OSError):
            if str(each.readlink()).startswith(kind):
                found.append(int(each.name))
    return found
