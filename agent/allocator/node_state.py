"""What the allocator remembers of its node, under one lock."""

import threading
from types import TracebackType
from typing import Self

from agent.allocator.model.ledger import Ledger
from agent.allocator.model.offers import Offers
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.reservations import Reservations
from agent.allocator.resolver.pod_index import PodIndex


class NodeState:
    """The ledger, the pod index, reservations and offers, with the lock that guards them all.

    ``with state:`` holds the lock. It covers memory only: nothing outside is asked meanwhile.

    Attributes:
        ledger: who holds what.
        pod_index: the pods of the node.
        reservations: what is reserved and not given out yet.
        offers: what the kubelet withholds, by what it has offered.
    """

    def __init__(self, table: DeviceTable, *, aligned: bool = False) -> None:
        """Start with nothing remembered.

        Args:
            table: the node's device IDs.
            aligned: whether the kubelet knows the cards' NUMA nodes.
        """
        self.ledger = Ledger()
        self.pod_index = PodIndex()
        self.reservations = Reservations()
        self.offers = Offers(table, aligned=aligned)
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
