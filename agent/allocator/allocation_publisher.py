"""Which allocation annotations are written: what a pod's containers got, once known. Pure."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from agent.allocator.model.allocations import allocations_of, is_news, served_inits
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.ports import AnnotationWriter
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.node_state import NodeState
from agent.allocator.resolver.resolver import Resolver
from agent.errors import GrantError


class AllocationPublisher:
    """Hand what is news to the annotation writer, in the order in which it was decided."""

    def __init__(self, *, state: NodeState, table: DeviceTable, writer: AnnotationWriter) -> None:
        """Read off *state* and put into *writer*."""
        self._state = state
        self._ledger = state.ledger
        self._table = table
        self._pod_index = state.pod_index
        self._writer = writer
        self._deferred: set[PodId] | None = None  # pods to hand on later; None: at once

    @contextmanager
    def reconciling(self, resolver: Resolver) -> Iterator[None]:
        """Hold the lock; hand on what *resolver* has changed by the kubelet's record by then."""
        with self._state:
            try:
                yield
            finally:
                self.publish_all(resolver.take_changed())

    def defer(self) -> None:
        """Hand nothing on until ``resume``."""
        self._deferred = self._deferred or set()

    def resume(self, pods: AbstractSet[PodId]) -> None:
        """Hand on what is complete of *pods*, and of those that were deferred."""
        deferred, self._deferred = self._deferred or set(), None
        self.publish_all(pods | deferred)

    def publish_all(self, pods: AbstractSet[PodId]) -> None:
        """Hand on what is complete of *pods*."""
        for pod in sorted(pods):
            self.publish(self._pod_index.view(pod))

    def publish(self, view: PodView | None, *, parts: bool = False) -> None:
        """Hand on what a pod got, once that is complete and its annotation does not show it.

        Args:
            view: the pod.
            parts: hand on what ordinary init containers got, too, while the rest is missing.
                Nobody else knows (fact K4): written now, an agent that is killed before the
                pod is complete has not forgotten it.
        """
        if view is None or self._pod_index.has_departed(view.id):
            return  # nobody is there to be written to
        if self._deferred is not None:
            self._deferred.add(view.id)
            return
        try:
            found = allocations_of(self._ledger, self._table, view)
        except GrantError:
            found = None  # it holds places of a card this node no longer has
        if (not found or not is_news(found, view.annotated)) and parts:
            found = served_inits(self._ledger, self._table, view)
        if found and is_news(found, view.annotated):
            self._writer.put(view, found)
