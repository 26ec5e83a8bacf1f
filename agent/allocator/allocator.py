"""The allocator: the three calls of the kubelet and what keeps the ledger true, around one state.

Three calls come in, one per RPC of a device plugin; each has a module of its own. What they
need from outside arrives through Protocols. The lock covers memory only and is never
held while something outside is asked.
"""

from collections.abc import Callable, Sequence

from agent.allocator.allocate_call import AllocateCall
from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.enforcement_coordinator import EnforcementCoordinator
from agent.allocator.free_places import free_places
from agent.allocator.holdings import Holdings, read_holdings
from agent.allocator.model.answer import Answer
from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant
from agent.allocator.model.ledger_copy import Knowledge
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.ports import (
    AnnotationWriter,
    DecisionLog,
    Enforcer,
    PodSource,
    RecordSource,
)
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.node_state import NodeState
from agent.allocator.placer import Placer
from agent.allocator.preferred_call import PreferredCall
from agent.allocator.prestart_call import PreStartCall
from agent.allocator.reconciler import Reconciler
from agent.allocator.resolver.observer import Observer
from agent.allocator.resolver.pod_lookup import PodReader
from agent.allocator.resolver.resolver import Resolver
from agent.allocator.resolver.validated_pods import ValidatedPods
from agent.allocator.settler import Settler
from agent.allocator.single_flight import SharedRecord
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
        writer: AnnotationWriter,
        decision_log: DecisionLog,
        answer: Callable[[Grant], Answer],
        enforcer: Enforcer | None = None,
        unhealthy: Callable[[str], str] = lambda _uuid: "",
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
        aligned: bool = False,
    ) -> None:
        """Start with an empty ledger.

        Args:
            table: the node's device IDs.
            pods: the pods of this node.
            record: the kubelet's own record.
            writer: takes finished allocations.
            decision_log: takes decisions.
            answer: turns a grant into an ``Allocate`` answer.
            enforcer: what holds containers to their limits, and adds to answers.
            unhealthy: why a card, by UUID, may not be given out; empty when it may.
            policy: which card a share prefers, unless its pod wishes otherwise.
            strict: whether a scheduler's choice of cards that does not fit is refused.
            aligned: whether the kubelet knows the cards' NUMA nodes.
        """
        self.state = state = NodeState(table, aligned=aligned)
        self._table = table
        self._pods = ValidatedPods(pods, table)
        shared = SharedRecord(record)
        self._resolver = resolver = Resolver(
            ledger=state.ledger,
            pod_index=state.pod_index,
            pods=self._pods,
            decision_log=decision_log,
        )
        observer = Observer(
            resolver,
            record=record,
            reader=PodReader(self._pods),
            decision_log=decision_log,
            lock=state,
        )
        self._publisher = publisher = AllocationPublisher(state=state, table=table, writer=writer)
        self._coordinator = EnforcementCoordinator(
            enforcer=enforcer, state=state, table=table, resolver=resolver, record=shared
        )
        settler = Settler(
            state=state,
            resolver=resolver,
            observer=observer,
            publisher=publisher,
            decision_log=decision_log,
        )
        self._preferred = PreferredCall(
            state=state,
            table=table,
            settler=settler,
            placer=Placer(table=table, links=Links(table.inventory), unhealthy=unhealthy),
            decision_log=decision_log,
            unhealthy=unhealthy,
            policy=policy,
            strict=strict,
        )
        self._allocate = AllocateCall(
            state=state,
            table=table,
            settler=settler,
            resolver=resolver,
            coordinator=self._coordinator,
            publisher=publisher,
            decision_log=decision_log,
            answer=answer,
        )
        self._prestart = PreStartCall(
            state=state,
            table=table,
            resolver=resolver,
            coordinator=self._coordinator,
            publisher=publisher,
            record=shared,
            decision_log=decision_log,
        )
        self._reconciler = Reconciler(
            state=state,
            resolver=resolver,
            observer=observer,
            publisher=publisher,
            record=shared,
        )

    # --- the three calls -------------------------------------------------------------

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Settle who is asking, place it, and return the IDs of its places.

        Raises:
            Refusal: nobody can be asking this, or nothing fits.
        """
        return self._preferred.answer(resource, available, must, size)

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate IDs into what their container gets, and assign them to it.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        return self._allocate.answer(resource, device_ids)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove that the container about to start is the one its places were given to.

        Raises:
            Refusal: what it holds contradicts what it asks for; the start is vetoed.
        """
        self._prestart.answer(resource, device_ids)

    # --- keeping up ------------------------------------------------------------------

    def rebuild(self, *, inheriting: bool = False) -> bool:
        """Read the ledger off the kubelet's record; return whether it could be had.

        Args:
            inheriting: ``inherit`` comes next, and nothing is written before.
        """
        return self._reconciler.rebuild(inheriting=inheriting)

    def refresh(self, *, unpublished: bool = True) -> bool:
        """Apply what happened without a call; return whether something has become free.

        Args:
            unpublished: look after pods without a complete allocation annotation, too.
        """
        return self._reconciler.refresh(unpublished=unpublished)

    def registered(self) -> None:
        """Record that the plugin has registered: a kubelet that restarted tries pods anew."""
        self._reconciler.registered()

    def knowledge(self) -> Knowledge:
        """Return what the kubelet's record does not tell a successor."""
        return self._reconciler.knowledge()

    def inherit(self, known: Knowledge) -> None:
        """Apply what a predecessor knew, where the kubelet's record says nothing of it."""
        self._reconciler.inherit(known)

    def catch_up(self, view: PodView) -> None:
        """Write the allocation of a pod that has one and does not show it yet."""
        view = self._pods.validate(view)
        if view.terminal or not view.demand:
            return
        with self.state:
            # A pod that was served while the API was away is known by its name alone.
            self._resolver.update()
            if not view.assigned:
                self._publisher.publish(view)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free places by card."""
        with self.state as state:
            hidden = self._resolver.update().hidden
            return free_places(state.ledger, self._table, resource, hidden=hidden)

    def holdings(self) -> Holdings:
        """Return who holds what of each card, and what is free."""
        with self.state as state:
            moment = read_holdings(state, self._resolver.update(), self._table)
        return moment.count()

    # --- enforcing -------------------------------------------------------------------

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here."""
        return self._coordinator.entitled(pod_uid, container)

    def sweep(self) -> None:
        """Release what enforcement made for pods that are gone."""
        self._coordinator.sweep()
