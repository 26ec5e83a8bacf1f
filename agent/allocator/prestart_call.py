"""``PreStartContainer``: prove that the container about to start is the one that was meant."""

from collections.abc import Sequence

from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.enforcement_coordinator import EnforcementCoordinator
from agent.allocator.model.ledger import ContainerRef
from agent.allocator.model.podresources import match_entries
from agent.allocator.model.ports import DecisionLog, RecordSource
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.node_state import NodeState
from agent.allocator.proof import (
    apply_record,
    check_start,
    check_unshared,
    check_wishes,
    holder,
    proven,
    why_unproven,
)
from agent.allocator.resolver.resolver import Resolver
from agent.errors import Refusal, Unavailable
from contract.allocation import Evidence
from contract.resource import Resource

PROOF_WITHIN = 2.0
"""Seconds ``PreStartContainer`` waits for it; the kubelet gives it 30 (fact K10)."""


class PreStartCall:
    """Answers ``PreStartContainer`` calls."""

    def __init__(  # noqa: PLR0913 -- the collaborators, by keyword
        self,
        *,
        state: NodeState,
        table: DeviceTable,
        resolver: Resolver,
        coordinator: EnforcementCoordinator,
        publisher: AllocationPublisher,
        record: RecordSource,
        decision_log: DecisionLog,
    ) -> None:
        """Prove what *state* says by the kubelet's *record*."""
        self._state = state
        self._table = table
        self._resolver = resolver
        self._coordinator = coordinator
        self._publisher = publisher
        self._record = record
        self._decision_log = decision_log

    def answer(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Return if the container that holds these places may start.

        Raises:
            Refusal: what it holds contradicts what it asks for; the start is vetoed.
        """
        ids = frozenset(device_ids)
        ref: ContainerRef | None = None
        try:
            with self._state as state:
                ref = proven(state.ledger, resource, ids)
            if ref is None:
                ref = self._prove(resource, ids)
            if ref is not None:
                self._check(ref, resource, ids)
            if resource is Resource.CORE:
                self._coordinator.start(ref, ids)
        except Refusal as error:
            self._decision_log.refused("prestart", ref, resource, len(device_ids), str(error))
            raise
        if ref is not None:
            self._decision_log.decided("prestart", ref, resource, Evidence.RECORD, ids)

    def _check(self, ref: ContainerRef, resource: Resource, ids: frozenset[str]) -> None:
        """Compare what a container holds with what it asks for.

        Raises:
            GrantError: they contradict each other.
        """
        with self._state as state:
            view = self._resolver.update().view(ref.pod)
            check_start(state.ledger, self._table, ref, view)
            if view is not None and (not view.running or state.reservations.unadvised(ids)):
                check_wishes(self._table, resource, ids, view)

    def _prove(self, resource: Resource, ids: frozenset[str]) -> ContainerRef | None:
        """Ask the kubelet's record who holds *ids*, and apply that."""
        ledger = self._state.ledger
        with self._state:
            guessed = ledger.find(resource, ids)
        try:
            snapshot = self._record.list(within=PROOF_WITHIN)
        except Unavailable as error:
            self._decision_log.unproven(guessed[0] if guessed else None, ids, str(error))
            return None
        with self._state:
            views_of = self._resolver.update().views_of
            guessed = ledger.find(resource, ids)  # what ended meanwhile is released
            found = holder(snapshot, resource, ids, views_of=views_of, owners=ledger.owners)
            if found is None:
                certain = [each for each in guessed if not self._by_order(each, resource)]
                listed = match_entries(snapshot.pods, views_of, ledger.owners)
                check_unshared(listed, resource, ids, certain)
                reason = why_unproven(ledger, guessed)
                self._decision_log.unproven(guessed[0] if guessed else None, ids, reason)
                return None
            ref, held = found
            wrong = apply_record(ledger, ref, held)
            if wrong or ref not in guessed:
                self._publisher.publish_all({ref.pod, *(each.guessed.pod for each in wrong)})
        for correction in wrong:
            self._decision_log.corrected(correction)
        return ref

    def _by_order(self, ref: ContainerRef, resource: Resource) -> bool:
        """Return whether it was merely guessed that *ref* got what it holds."""
        held = self._state.ledger.holding(ref, resource)
        return held is not None and held.evidence is Evidence.ORDER
