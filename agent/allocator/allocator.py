"""The allocator: the three calls of the kubelet and what keeps its snapshot true, on one state.

Three calls come in, one per RPC of a device plugin. What they need from outside arrives through
Protocols. The lock covers memory only and is never held while something outside is asked.
"""

import time
from collections.abc import Callable, Sequence

from agent.allocator.calls import AllocateCall, CallRunner, PreferredCall
from agent.allocator.grants import ContainerEdits, Entitlement, Grant
from agent.allocator.interfaces import (
    AnnotationWriter,
    CheckpointSource,
    DecisionLog,
    PodResourcesSource,
    PodSource,
    Store,
)
from agent.allocator.node_state import NodeState
from agent.allocator.observer import KubeletObserver
from agent.allocator.outcomes import AllocationPublisher, EnforcementCoordinator, Enforcer
from agent.allocator.placer import Placer
from agent.allocator.prestart import Pause, PreStartCall
from agent.allocator.search_input import free_slots
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from contract.resource import RESOURCES, Resource
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.topology import Links


class Allocator:
    """Handles every call of the kubelet for one node.

    Attributes:
        state: what it keeps between calls; to be held by whoever reads it.
        table: the node's device IDs.
    """

    def __init__(  # noqa: PLR0913 -- the collaborators of the whole node, by keyword
        self,
        *,
        table: DeviceTable,
        pods: PodSource,
        pod_resources: PodResourcesSource,
        checkpoint: CheckpointSource,
        store: Store,
        writer: AnnotationWriter,
        decision_log: DecisionLog,
        inject: Callable[[Grant], ContainerEdits],
        enforcer: Enforcer,
        unhealthy: Callable[[str], str] = lambda _uuid: "",
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
        kubelet: Callable[[], str] = lambda: "",
        pause: Pause = time.sleep,
    ) -> None:
        """Start with an empty snapshot.

        Args:
            table: the node's device IDs.
            pods: the pods of this node.
            pod_resources: the kubelet's ``List``.
            checkpoint: the kubelet's checkpoint file.
            store: keeps what was assigned to the current pod.
            writer: takes finished allocations.
            decision_log: takes decisions.
            inject: turns a grant into what its container finds.
            enforcer: what holds containers to their limits, and adds to what they find.
            unhealthy: why a card, by UUID, may not be given out; empty when it may.
            policy: which card a share prefers, unless its pod wishes otherwise.
            strict: whether a scheduler's choice of cards that does not fit is refused.
            kubelet: which instance of the kubelet is there.
            pause: waits so many seconds.
        """
        self.state = state = NodeState(store)
        self.table = table
        self._pods = pods
        self._observer = observer = KubeletObserver(
            state=state,
            pods=pods,
            pod_resources=pod_resources,
            checkpoint=checkpoint,
            kubelet=kubelet,
            decision_log=decision_log,
            pause=pause,
        )
        self._publisher = publisher = AllocationPublisher(state=state, table=table, writer=writer)
        self._coordinator = coordinator = EnforcementCoordinator(
            enforcer=enforcer, state=state, table=table, observer=observer
        )
        runner = CallRunner(state=state, observer=observer, decision_log=decision_log)
        self._preferred = PreferredCall(
            state=state,
            table=table,
            runner=runner,
            placer=Placer(table=table, links=Links(table.inventory), unhealthy=unhealthy),
            decision_log=decision_log,
            policy=policy,
            strict=strict,
        )
        self._allocate = AllocateCall(
            state=state,
            table=table,
            runner=runner,
            observer=observer,
            coordinator=coordinator,
            publisher=publisher,
            decision_log=decision_log,
            inject=inject,
        )
        self._prestart = PreStartCall(
            state=state,
            table=table,
            observer=observer,
            coordinator=coordinator,
            publisher=publisher,
            decision_log=decision_log,
            pause=pause,
        )

    # --- the three calls -------------------------------------------------------------

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Find the target, choose slots for it, and return their IDs.

        Raises:
            Refusal: no container can be asking this, or nothing fits.
        """
        self._observer.detect_restart()
        return self._preferred.handle(resource, available, must, size)

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        """Translate IDs into what their container finds, and assign them to it.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        self._observer.detect_restart()
        return self._allocate.handle(resource, device_ids)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove that the container about to start is the one its slots were assigned to.

        Raises:
            Refusal: what it holds contradicts what it asks for; the start is vetoed.
        """
        self._observer.detect_restart()
        self._prestart.handle(resource, device_ids)

    # --- keeping up ------------------------------------------------------------------

    def refresh(self, *, thorough: bool = True) -> bool:
        """Apply what happened without a call; return whether something has become free.

        Args:
            thorough: ask for ``List`` although nothing is known to have changed.
        """
        self._observer.detect_restart()
        before = self.snapshot().held
        if not thorough and not self._observer.may_have_changed():
            return False
        self._observer.observe()
        with self.state as state:
            self._publisher.publish_all()
            return any(before[each] - state.snapshot.held[each] for each in RESOURCES)

    def catch_up(self, info: PodInfo) -> None:
        """Write the allocation of a pod that has one and does not show it yet."""
        if info.terminal or not info.demand:
            return
        with self.state as state:
            # A pod that was served while the API was unreachable is known by its name alone.
            state.set_pods(self._pods.pods(), synced=self._pods.is_synced())
            state.update_snapshot()
            self._publisher.publish(info)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free slots by card."""
        return free_slots(self.snapshot(), self.table, resource)

    def snapshot(self) -> AllocationSnapshot:
        """Return who holds what at this moment."""
        with self.state as state:
            return state.snapshot

    # --- enforcing -------------------------------------------------------------------

    def entitled(self, runtime_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here."""
        return self._coordinator.entitled(runtime_uid, container)

    def sweep(self) -> None:
        """Release what enforcement made for pods that are gone."""
        self._coordinator.sweep()
