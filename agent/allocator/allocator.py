"""The allocator: the three calls of the kubelet and what keeps the record true, around one state.

Three calls come in, one per RPC of a device plugin; each has a module of its own. What they
need from outside arrives through Protocols. The lock covers memory only and is never
held while something outside is asked.
"""

import time
from collections.abc import Callable, Sequence

from agent.allocator.allocate_call import AllocateCall
from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.enforcement_coordinator import EnforcementCoordinator
from agent.allocator.model.answer import Answer
from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.ports import (
    AnnotationWriter,
    CheckpointSource,
    DecisionLog,
    Enforcer,
    PodSource,
    RecordSource,
)
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.node_state import NodeState
from agent.allocator.observer import Observer
from agent.allocator.placer import Placer
from agent.allocator.preferred_call import PreferredCall
from agent.allocator.prestart_call import Pause, PreStartCall
from agent.allocator.record import Record
from agent.allocator.saved_state import Store
from agent.allocator.search_input import free_slots
from agent.allocator.settler import Settler
from contract.resource import Resource
from placement.scoring import Policy
from placement.topology import Links


class Allocator:
    """Settles every call of the kubelet for one node.

    Attributes:
        state: what it remembers; to be held by whoever reads it.
    """

    def __init__(  # noqa: PLR0913 -- the collaborators of the whole node, by keyword
        self,
        *,
        table: DeviceTable,
        pods: PodSource,
        record: RecordSource,
        checkpoint: CheckpointSource,
        store: Store,
        writer: AnnotationWriter,
        decision_log: DecisionLog,
        answer: Callable[[Grant], Answer],
        enforcer: Enforcer,
        unhealthy: Callable[[str], str] = lambda _uuid: "",
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
        kubelet: Callable[[], str] = lambda: "",
        pause: Pause = time.sleep,
    ) -> None:
        """Start with an empty record.

        Args:
            table: the node's device IDs.
            pods: the pods of this node.
            record: the kubelet's ``List``.
            checkpoint: the kubelet's checkpoint file.
            store: keeps what was answered for the pod in service.
            writer: takes finished allocations.
            decision_log: takes decisions.
            answer: turns a grant into an ``Allocate`` answer.
            enforcer: what holds containers to their limits, and adds to answers.
            unhealthy: why a card, by UUID, may not be given out; empty when it may.
            policy: which card a share prefers, unless its pod wishes otherwise.
            strict: whether a scheduler's choice of cards that does not fit is refused.
            kubelet: which life of the kubelet is there.
            pause: waits so many seconds.
        """
        self.state = state = NodeState(store)
        self.table = table
        self._pods = pods
        observer = Observer(
            state=state,
            pods=pods,
            record=record,
            checkpoint=checkpoint,
            kubelet=kubelet,
            decision_log=decision_log,
            pause=pause,
        )
        self._observer = observer
        self._publisher = publisher = AllocationPublisher(state=state, table=table, writer=writer)
        self._coordinator = EnforcementCoordinator(
            enforcer=enforcer, state=state, table=table, observer=observer, record=record
        )
        settler = Settler(state=state, observer=observer, decision_log=decision_log)
        self._preferred = PreferredCall(
            state=state,
            table=table,
            settler=settler,
            placer=Placer(table=table, links=Links(table.inventory), unhealthy=unhealthy),
            decision_log=decision_log,
            policy=policy,
            strict=strict,
        )
        self._allocate = AllocateCall(
            state=state,
            table=table,
            settler=settler,
            observer=observer,
            coordinator=self._coordinator,
            publisher=publisher,
            decision_log=decision_log,
            inject=answer,
        )
        self._prestart = PreStartCall(
            state=state,
            table=table,
            observer=observer,
            coordinator=self._coordinator,
            publisher=publisher,
            decision_log=decision_log,
            pause=pause,
        )

    # --- the three calls -------------------------------------------------------------

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Settle who is asking, place it, and return the IDs of its places.

        Raises:
            Refusal: nobody can be asking this, or nothing fits.
        """
        self._observer.meet_kubelet()
        return self._preferred.answer(resource, available, must, size)

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate IDs into what their container gets, and assign them to it.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        self._observer.meet_kubelet()
        return self._allocate.answer(resource, device_ids)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove that the container about to start is the one its places were given to.

        Raises:
            Refusal: what it holds contradicts what it asks for; the start is vetoed.
        """
        self._observer.meet_kubelet()
        self._prestart.answer(resource, device_ids)

    # --- keeping up ------------------------------------------------------------------

    def refresh(self, *, thorough: bool = True) -> bool:
        """Apply what happened without a call; return whether something has become free.

        Args:
            thorough: ask for ``List`` although nothing is known to have changed.
        """
        self._observer.meet_kubelet()
        with self.state as state:
            before = {each: state.record.held(each) for each in Resource}
        if not thorough and not self._observer.has_news():
            return False
        self._observer.look()
        with self.state as state:
            self._publisher.publish_all()
            return any(before[each] - state.record.held(each) for each in Resource)

    def catch_up(self, view: PodView) -> None:
        """Write the allocation of a pod that has one and does not show it yet."""
        if view.terminal or not view.demand:
            return
        with self.state as state:
            # A pod that was served while the API was away is known by its name alone.
            state.update(self._pods.views(), synced=self._pods.is_synced())
            state.rebuild()
            self._publisher.publish(view)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free places by card."""
        with self.state as state:
            return free_slots(state.record, self.table, resource)

    def record(self) -> Record:
        """Return who holds what at this moment."""
        with self.state as state:
            return state.record

    # --- enforcing -------------------------------------------------------------------

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here."""
        return self._coordinator.entitled(pod_uid, container)

    def sweep(self) -> None:
        """Release what enforcement made for pods that are gone."""
        self._coordinator.sweep()
