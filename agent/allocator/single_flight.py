"""One question for many: callers that wait for the same answer share it.

Pure of I/O but for waiting; what is asked comes from outside.
"""

import threading
import time
from collections.abc import Callable

from agent.allocator.model.podresources import Snapshot
from agent.allocator.model.ports import RecordSource
from agent.errors import Unavailable


class SharedRecord:
    """A :class:`agent.allocator.model.ports.RecordSource` for many callers at once.

    Every answer was asked for after its caller came: one that was on its way already may
    not show what the caller wants to know. So a caller waits for the answer on its way, if
    there is one, and shares the next with all who came meanwhile. However many they are, the
    kubelet is asked one question at a time (it allows 100 a second, fact K5).
    """

    def __init__(
        self, record: RecordSource, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Share *record*."""
        self._record = record
        self._clock = clock
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._asking = False
        self._answer: Snapshot | None = None

    def list(self, *, within: float) -> Snapshot:
        """Ask, or share the answer to who asks next.

        Args:
            within: seconds for everything, waiting included.

        Raises:
            Unavailable: no answer in time.
        """
        deadline = self._clock() + within
        reason = "PodResources: no answer in time"
        with self._changed:
            mine = self._asked + 1
            while True:
                if self._answered >= mine and self._answer is not None:
                    return self._answer
                left = deadline - self._clock()
                if left <= 0:
                    raise Unavailable(reason)
                if not self._asking:
                    break
                self._changed.wait(left)
            self._asking = True
            self._asked += 1
        answer: Snapshot | None = None
        try:
            answer = self._record.list(within=left)
        finally:
            with self._changed:
                self._asking = False
                self._answered, self._answer = self._asked, answer
                self._changed.notify_all()
        return answer
