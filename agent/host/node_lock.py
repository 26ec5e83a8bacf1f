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

    def __init__(self, folder: Path) -> None:
        """Prepare to lock *folder*, in which all agents of the node register."""
        self.waiting = False
        self.problem = ""
        self._path = folder / LOCK
        self._descriptor = -1

    def take(self, stop: threading.Event) -> bool:
        """Wait for the lock; return ``False`` if *stop* was set first."""
        while not stop.is_set():
            try:
                if self._try_to_lock():
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
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try_to_lock(self) -> bool:
        """Take the lock if it is free.

        Raises:
            OSError: the file cannot be made or opened.
        """
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
