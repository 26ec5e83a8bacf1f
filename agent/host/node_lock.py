"""One agent at a time on a node: a file lock, which the kernel releases when the process ends.

In a rolling update the next agent's pod starts while the old one runs. Otherwise the kubelet could
not start it: a call that waits for an agent delays the admission of every pod of the node, the
agent's own pod included. The next agent waits for this lock before it changes anything on the node.
"""

import fcntl
import logging
import os
import threading
from pathlib import Path

log = logging.getLogger(__name__)

LOCK = "agent.lock"
_CHECK_SECONDS = 0.02
_PROBLEM_SECONDS = 1.0
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class NodeLock:
    """The lock of one agent.

    Attributes:
        waiting: whether another agent of this node still holds the lock.
        problem: why locking fails; empty if it does not fail.
    """

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        """Prepare to lock *folder*, in which all agents of the node register."""
        self.waiting = False
        self.problem = ""
        self._path = folder / name
        self._descriptor = -1

    def take(self, stop: threading.Event) -> bool:
        """Wait for the lock; return ``False`` if *stop* was set first."""
        while not stop.is_set():
            try:
                if self.try_to_take():
                    self.waiting, self.problem = False, ""
                    return True
            except OSError as error:
                if not self.problem:
                    log.warning("cannot lock the node", extra={"reason": str(error)})
                self.waiting, self.problem = False, f"cannot lock the node: {error}"
                stop.wait(_PROBLEM_SECONDS)
                continue
            if not self.waiting:
                log.info("another agent serves this node: waiting for its end")
            self.waiting, self.problem = True, ""
            stop.wait(_CHECK_SECONDS)
        return False

    def release(self) -> None:
        """Release the lock for the next agent."""
        if self.is_mine:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_mine(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor >= 0

    def is_taken(self) -> bool:
        """Return whether a process holds the lock, which another one may ask."""
        try:
            with self._path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def try_to_take(self) -> bool:
        """Take the lock if it is free; return whether this process has it.

        Raises:
            OSError: the file cannot be made or opened.
        """
        if self.is_mine:
            return True
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there, held = self._path.stat(), os.fstat(descriptor)
            if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
                self._descriptor, descriptor = descriptor, -1
                return True
        except BlockingIOError:
            pass
        except FileNotFoundError:  # the folder was emptied in between
            pass
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return False
