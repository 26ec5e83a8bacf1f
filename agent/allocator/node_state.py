"""What the allocator remembers of its node, under one lock."""

import threading
from types import TracebackType
from typing import Self

from agent.allocator.model.ledger import Ledger
from agent.allocator.reservations import Reservations
from agent.allocator.resolver.pod_index import PodIndex


class NodeState:
    """The ledger, the pod index and the reservations, with the lock that guards all three.

    ``with state:`` holds the lock. It covers memory only: nothing outside is asked meanwhile.

    Attributes:
        ledger: who holds what.
        pod_index: the pods of the node.
        reservations: what is reserved and not given out yet.
    """

    def __init__(self) -> None:
        """Start with nothing remembered."""
        self.ledger = Ledger()
        self.pod_index = PodIndex()
        self.reservations = Reservations()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Take the lock."""
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._lock.release()
