"""Choose the allocation annotations to be written: what a pod's containers got, once known."""

from dataclasses import dataclass

from agent.allocator.model.allocations import allocations_of, is_news
from agent.allocator.model.ports import AnnotationWriter
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.node_state import NodeState
from agent.allocator.pods import kubelet_uid
from agent.errors import GrantError
from placement.pods import PodInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPublisher:
    """Hand what is news to the annotation writer. Called with the state's lock held."""

    state: NodeState
    table: DeviceTable
    writer: AnnotationWriter

    def publish_all(self) -> None:
        """Hand on what is complete and not shown yet, of any pod that the API shows."""
        for view in self.state.pods.shown:
            if view.demand and not view.terminal:
                self.publish(view)

    def publish(self, view: PodInfo | None) -> None:
        """Hand on what a pod got, once that is complete and its annotation does not show it."""
        if view is None or not self.state.pods.is_shown(kubelet_uid(view)):
            return  # nobody is there to be written to
        try:
            found = allocations_of(
                self.state.record, self.table, view, evidence=self.state.evidence
            )
        except GrantError:
            return  # it holds places of a card this node no longer has
        if found and is_news(found, view.annotated):
            self.writer.put(view, found)
