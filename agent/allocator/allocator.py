"""The allocator: handles the kubelet's three calls and keeps the snapshot up to date, on one state.

There is one call for each RPC of a device plugin. Adapters implement the Protocols that it uses.
The lock protects memory only, and is never held during I/O.
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
        state: the state between calls; readers must hold its lock.
        table: the node's device IDs.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
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
        withheld: Callable[[str], str] = lambda _uuid: "",
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
            store: saves the assignments of the current pod.
            writer: writes finished allocations to pods.
            decision_log: reports decisions.
            inject: returns the container edits of a grant.
            enforcer: enforces the limits of containers, and adds container edits.
            withheld: returns why a card, by UUID, gets no new container; empty if it does.
            policy: which card a share prefers, unless the pod has a wish.
            strict: whether a pod is refused if the cards that a scheduler chose do not fit.
            kubelet: returns the name of the running kubelet instance.
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
            placer=Placer(table=table, links=Links(table.inventory), withheld=withheld),
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
            Refusal: no container matches the call, or nothing fits.
            KubeletReplaced: another kubelet runs now than the one that made the call.
        """
        kubelet = self._observer.detect_restart()
        return self._preferred.handle(kubelet, resource, available, must, size)

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        """Assign device IDs to their container, and return its container edits.

        Raises:
            Refusal: the IDs contradict each other, or another container holds them.
            KubeletReplaced: another kubelet runs now than the one that made the call.
        """
        kubelet = self._observer.detect_restart()
        return self._allocate.handle(kubelet, resource, device_ids)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Verify that these slots were assigned to the container that is about to start.

        Raises:
            Refusal: the container's devices contradict its request; the start is vetoed.
        """
        self._observer.detect_restart()
        self._prestart.handle(resource, device_ids)

    # --- updates between calls -------------------------------------------------------

    def refresh(self, *, thorough: bool = True) -> bool:
        """Apply changes that came without a call; return whether slots have become free.

        Args:
            thorough: read ``List`` even if no source shows a change.
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
        """Write the allocation annotation of a pod if it is missing or out of date."""
        if info.terminal or not info.demand:
            return
        with self.state as state:
            # If the API was unreachable during its admission, only the pod's name is known so far.
            state.set_pods(self._pods.pods(), synced=self._pods.is_synced())
            state.update_snapshot()
            self._publisher.publish(info)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free slots by card."""
        return free_slots(self.snapshot(), self.table, resource)

    def snapshot(self) -> AllocationSnapshot:
        """Return the present snapshot."""
        with self.state as state:
            return state.snapshot

    # --- enforcement -----------------------------------------------------------------

    def entitled(self, runtime_uid: str, container: str) -> Entitlement | None:
        """Return the entitlement of a running container; ``None`` if it holds nothing here."""
        return self._coordinator.entitled(runtime_uid, container)

    def sweep(self) -> None:
        """Remove the files that enforcement made for deleted pods."""
        self._coordinator.sweep()
