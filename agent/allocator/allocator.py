"""The allocator: handles the kubelet's three calls and keeps the snapshot up to date, on one state.

There is one call for each RPC of a device plugin. Adapters implement the Protocols that it uses.
The lock protects memory only, and is never held during I/O.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from agent.allocator.calls import AllocateCall, PreferredCall
from agent.allocator.identity import kubelet_uid
from agent.allocator.interfaces import (
    CheckpointSource,
    DecisionLog,
    PodResourcesSource,
    PodSource,
    Store,
)
from agent.allocator.node_state import NodeState
from agent.allocator.observer import KubeletObserver
from agent.allocator.placer import Placer
from agent.allocator.prestart import Pause, PreStartCall
from agent.allocator.slot_holdings import allocations_of, read_holdings
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from agent.holdings.core import NodeCore
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding, NodeHoldings
from agent.holdings.interfaces import AnnotationWriter, Enforcer
from contract.allocation import Allocation
from contract.resource import Resource
from placement.pods import PodId, PodInfo
from placement.scoring import Policy
from placement.topology import Links


class Allocator(NodeCore):
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
        inject: Callable[[Holding], ContainerEdits],
        enforcer: Enforcer,
        withheld: Callable[[str], str] = lambda _uuid: "",
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
        kubelet: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
        pause: Pause = time.sleep,
    ) -> None:
        """Start with an empty snapshot.

        *inject* returns the container edits of a holding, *withheld* why a card, by UUID, gets no
        new container (empty if it does), and *kubelet* the name of the running kubelet instance.
        *policy* is which card a share prefers, unless the pod has a wish. If *strict*, a pod is
        refused if the cards that a scheduler chose do not fit. *clock* returns seconds, and *pause*
        waits so many.
        """
        super().__init__(pods=pods, writer=writer, enforcer=enforcer, inject=inject)
        self.state = state = NodeState(store)
        self.table = table
        self._pod_source = pods
        self._read = self.state.snapshot, read_holdings(self.state.snapshot, table)
        self._observer = observer = KubeletObserver(
            state=state,
            pods=pods,
            pod_resources=pod_resources,
            checkpoint=checkpoint,
            kubelet=kubelet,
            decision_log=decision_log,
            clock=clock,
            pause=pause,
        )
        self._preferred = PreferredCall(
            state=state,
            table=table,
            observer=observer,
            placer=Placer(table=table, links=Links(table.inventory), withheld=withheld),
            decision_log=decision_log,
            policy=policy,
            strict=strict,
        )
        self._allocate = AllocateCall(
            state=state,
            table=table,
            observer=observer,
            enforcement=self._enforcement,
            publisher=self._publisher,
            decision_log=decision_log,
        )
        self._prestart = PreStartCall(
            state=state,
            table=table,
            observer=observer,
            enforcement=self._enforcement,
            publisher=self._publisher,
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

    # --- who holds what --------------------------------------------------------------

    def holdings(self) -> NodeHoldings:
        """Return what containers hold, by the present snapshot."""
        snapshot, (read, holdings) = self.snapshot(), self._read
        if snapshot is not read:
            holdings = read_holdings(snapshot, self.table)
            self._read = snapshot, holdings
        return holdings

    def snapshot(self) -> AllocationSnapshot:
        """Return the present snapshot."""
        with self.state as state:
            return state.snapshot

    def may_have_changed(self) -> bool:
        """Return whether a source of the snapshot shows a change."""
        self._observer.detect_restart()
        return self._observer.may_have_changed()

    def observe(self) -> None:
        """Read checkpoint and ``List``."""
        self._observer.detect_restart()
        self._observer.observe()

    def _look_again(self) -> None:
        self._observer.observe()

    @contextmanager
    def _of_pods(self) -> Iterator[None]:
        with self.state as state:
            # If the API was unreachable during its admission, only the pod's name is known so far.
            state.set_pods(self._pod_source.pods(), synced=self._pod_source.is_synced())
            state.update_snapshot()
            yield

    def _find_allocations(self, info: PodInfo) -> dict[str, Allocation]:
        """Return the allocations of a pod by the present snapshot; the state's lock is held."""
        state = self.state
        if not state.known.is_shown(kubelet_uid(info)):
            return {}  # the API does not show the pod
        held, evidence = state.snapshot.containers(info.id), partial(state.find_evidence, info.id)
        return allocations_of(held, self.table, info, evidence=evidence) or {} if held else {}

    def _other_owners(self) -> Collection[PodId] | None:
        """Return the pods of ``List``; nothing is removed while it is unavailable."""
        entries = self._observer.read_list()
        if entries is None:
            return None
        return [PodId(each.namespace, each.name, "") for each in entries]
