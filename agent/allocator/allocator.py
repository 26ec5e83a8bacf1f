"""The allocator: the order in which the pure decisions are made, and what they are made from.

Three calls come in, one per RPC of a device plugin: :meth:`Allocator.prefer` resolves and
places, :meth:`Allocator.allocate` translates, :meth:`Allocator.prestart` proves. What they
need from outside arrives through Protocols. The lock covers memory only and is never
held while something outside is asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.enforcement_coordinator import EnforcementCoordinator
from agent.allocator.free_places import free_places
from agent.allocator.half_served import half_served
from agent.allocator.model.allocations import grant_of
from agent.allocator.model.answer import Answer
from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant, check_free, check_request, check_together, translate
from agent.allocator.model.ledger import ContainerRef, Holding
from agent.allocator.model.ledger_copy import Held, Knowledge, inherit
from agent.allocator.model.offers import Offers
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import Snapshot, match_entries
from agent.allocator.model.ports import (
    AnnotationWriter,
    DecisionLog,
    Enforcer,
    PodSource,
    RecordSource,
)
from agent.allocator.model.tickets import DeviceTable, Ticket
from agent.allocator.node_state import NodeState
from agent.allocator.placement_request import Assumptions, Constraints, PlacementRequest
from agent.allocator.placer import Placement, Placer, at_least
from agent.allocator.proof import (
    apply_record,
    assign_listed,
    check_start,
    check_unshared,
    check_wishes,
    holder,
    holds_nothing,
    proven,
    unshown,
    why_unproven,
)
from agent.allocator.reservations import Reservation, ref_of
from agent.allocator.resolver.call_context import CallContext
from agent.allocator.resolver.observer import WITNESS_WITHIN, Observer
from agent.allocator.resolver.pod_index import PodIndex
from agent.allocator.resolver.pod_lookup import PodReader
from agent.allocator.resolver.resolve import Ask, Resolution
from agent.allocator.resolver.resolver import Resolver
from agent.allocator.resolver.validated_pods import ValidatedPods
from agent.allocator.single_flight import SharedRecord
from agent.errors import Refusal, ResolutionError, Unavailable
from contract.allocation import Evidence
from contract.demand import PodDemand
from contract.resource import Resource
from placement.scoring import Policy
from placement.topology import Links

_Found = TypeVar("_Found")

PROOF_WITHIN = 2.0
"""Seconds ``PreStartContainer`` waits for it; the kubelet gives it 30 (fact K10)."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """Places found for a container, and reserved for it."""

    reservation: Reservation
    placement: Placement
    ids: frozenset[str]


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
        self._table = table
        self._pods = ValidatedPods(pods, table)
        self._shared = SharedRecord(record)
        self._decision_log = decision_log
        self._answer = answer
        self._unhealthy = unhealthy
        self._placer = Placer(table=table, links=Links(table.inventory), unhealthy=unhealthy)
        self._policy = policy
        self._strict = strict
        self.state = NodeState()
        self._ledger = self.state.ledger
        self._reservations = self.state.reservations
        self._publisher = AllocationPublisher(state=self.state, table=table, writer=writer)
        self._resolver = Resolver(
            ledger=self.state.ledger,
            pod_index=self.state.pod_index,
            pods=self._pods,
            decision_log=decision_log,
        )
        self._observer = Observer(
            self._resolver,
            record=record,
            reader=PodReader(self._pods),
            decision_log=decision_log,
            lock=self.state,
        )
        self._coordinator = EnforcementCoordinator(
            enforcer=enforcer,
            state=self.state,
            table=table,
            resolver=self._resolver,
            record=self._shared,
        )
        self._inherited: dict[tuple[ContainerRef, Resource], frozenset[str]] = {}
        self._unshown: Mapping[tuple[ContainerRef, Resource], Holding] = {}
        self._offers = Offers(table, aligned=aligned)

    # --- the three calls -------------------------------------------------------------

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Settle who is asking, place it, and give the IDs of its places.

        Raises:
            Refusal: nobody can be asking this, or nothing fits.
        """
        asker: list[Resolution] = []
        try:
            must_tickets = self._table.read(resource, must)
            offered = frozenset(available)
            with self.state:  # held by the ledger and offered all the same: those were freed
                held = (self._ledger.held(resource) & offered) - frozenset(must)
                ask = self._resolver.ask(resource, size, must)
            context = self._observer.look(frozenset((resource, each) for each in held), ask=ask)

            def place() -> _Placed:
                asker[:] = [self._resolver.resolve(resource, size, must, context)]
                return self._place(asker[0], resource, offered, must_tickets)

            placed = self._attempt(place, context, ask)
        except Refusal as error:
            self._refused("prefer", asker, resource, size, error)
            raise
        resolution, placement, ids = placed.reservation.resolution, placed.placement, placed.ids
        ref = ref_of(resolution)
        if placement.replaced:
            self._decision_log.replaced(ref, placement.replaced, placement.cards)
        if placed.reservation.view is None:
            self._decision_log.unadvised(ref, resource, ids)
        self._decision_log.decided("prefer", ref, resource, resolution.evidence, ids)
        return [str(ticket) for ticket in placement.tickets]

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate IDs into what their container gets, and assign them to it.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        ids = frozenset(device_ids)
        size = len(device_ids)
        asker: list[Resolution] = []
        try:
            tickets = self._table.read(resource, device_ids)
            with self.state:
                reserved = self._reservations.claim(resource, ids)
                ask = self._resolver.ask(resource, size, device_ids)
            if reserved is not None:
                asker = [reserved.resolution]
                evidence = Evidence.TICKET
                with self.state:
                    reservation, grant = reserved, self._vet(reserved, resource, tickets)
            else:
                named = frozenset((resource, each) for each in device_ids)
                context = self._observer.look(named=named, ask=ask)

                def vet() -> tuple[Reservation, Grant]:
                    asker[:] = [self._resolver.resolve(resource, size, device_ids, context)]
                    return self._vet_any(asker[0], resource, tickets)

                reservation, grant = self._attempt(vet, context, ask)
                evidence = reservation.resolution.evidence
            ref = ref_of(reservation.resolution)
            # Before anything is assigned: where it cannot be made, nothing has happened.
            found = self._answer(grant)
            with self._coordinator.making(ref, ids, grant) as made:
                self._assign(ref, reservation, resource, ids)
        except Refusal as error:
            self._refused("allocate", asker, resource, size, error)
            raise
        if reserved is None and reservation.view is None:
            self._decision_log.unadvised(ref, resource, ids)
        self._decision_log.decided("allocate", ref, resource, evidence, ids)
        return found.plus(made)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove that the container about to start is the one its places were given to.

        Raises:
            Refusal: what it holds contradicts what it asks for; the start is vetoed.
        """
        ids = frozenset(device_ids)
        ref: ContainerRef | None = None
        try:
            with self.state:
                ref = proven(self._ledger, resource, ids)
            if ref is None:
                ref = self._prove(resource, ids)
            if ref is not None:
                with self.state:
                    view = self._resolver.update().view(ref.pod)
                    check_start(self._ledger, self._table, ref, view)
                    if view is not None and (not view.running or self._reservations.unadvised(ids)):
                        check_wishes(self._table, resource, ids, view)
            if resource is Resource.CORE:
                self._coordinator.start(ref, ids)
        except Refusal as error:
            self._decision_log.refused("prestart", ref, resource, len(device_ids), str(error))
            raise
        if ref is not None:
            self._decision_log.decided("prestart", ref, resource, Evidence.RECORD, ids)

    # --- keeping up ------------------------------------------------------------------

    def rebuild(self, *, inheriting: bool = False) -> bool:
        """Read the ledger off the kubelet's record; return whether it could be had.

        Args:
            inheriting: ``inherit`` comes next, and nothing is written before, whoever asks for
                it: of ordinary init containers the kubelet's record says nothing (K4), a
                predecessor may.
        """
        context = self._observer.look()
        with self.state if inheriting else self._reconciling():
            there = set(self._resolver.update().live)
            if context.snapshot is not None:
                there |= self._resolver.reconcile(context.snapshot).pods
            self._resolver.admissions.add_there_at_start(there)
            if inheriting:
                self._publisher.defer()
        return context.snapshot is not None

    def knowledge(self) -> Knowledge:
        """Return what the kubelet's record does not tell a successor."""
        with self.state:
            refs = self._ledger.refs()
            held = tuple(Held(ref, kind, dict(held)) for ref, kind, held in refs)
            admissions = self._resolver.admissions
            return Knowledge(
                held,
                admissions.rejected,
                admissions.admission_over,
                admissions.refused,
                admissions.there_at_start,
            )

    def inherit(self, known: Knowledge) -> None:
        """Apply what a predecessor knew, where the kubelet's record says nothing of it.

        It tells all it knows after each call that it ends. What it has told before is passed over:
        a pod that ended since is released here, and there no more. An allocation that was
        written before it was told is written again.
        """
        with self.state:
            learned: set[PodId] = set()
            for each in known.held:
                new = {
                    resource: held
                    for resource, held in each.holdings.items()
                    if self._inherited.get((each.ref, resource)) != held.ids
                }
                if inherit(self._ledger, replace(each, holdings=new)):
                    learned.add(each.ref.pod)
                self._inherited |= {(each.ref, one): held.ids for one, held in new.items()}
            self._forget_half_served()
            self._resolver.admissions.inherit(known)
            self._publisher.resume(learned | self._resolver.take_changed())

    def refresh(self, *, unpublished: bool = True) -> bool:
        """Apply what the kubelet's record shows, on a node where no call comes any more.

        An agent that was killed after it answered has not written the allocation of a pod that
        nothing will happen to any more. And what ended pods held is free. Calls of the kubelet may
        come meanwhile: nothing is taken away from a pod that the API or the kubelet's record
        shows holding it.

        Args:
            unpublished: look after pods without a complete allocation annotation, too.

        Returns:
            Whether something has become free.
        """
        with self.state:
            # Asked before the kubelet's record: what is assigned from here on may not be in it.
            gone = self._resolver.gone()
            if not gone and not (unpublished and self._incomplete(self._resolver.update())):
                return False
        try:
            snapshot = self._shared.list(within=WITNESS_WITHIN)
        except Unavailable:
            return False
        with self.state:
            pod_index = self._resolver.update()
            incomplete = self._incomplete(pod_index)
            for each in match_entries(snapshot.pods, pod_index.views_of, self._ledger.owners):
                if each.pod in incomplete:
                    assign_listed(self._ledger, each)
            released = [
                self._ledger.release_pod(pod)
                for pod in gone
                # One that left the API holds its places until it has left List, too (K20).
                if holds_nothing(self._ledger, snapshot, pod, pod_index.shown(pod))
            ]
            released += self._release_guesses(snapshot, gone)
            self._publisher.publish_all(pod_index.unpublished)
        return any(released)

    def _incomplete(self, pod_index: PodIndex) -> set[PodId]:
        """Return the pods that may hold more by the kubelet's record than by the ledger.

        They have no complete allocation annotation, or had it from an agent before, and this one
        could not read the kubelet's record when it started.
        """
        return {
            *pod_index.unpublished,
            *(each for each in pod_index.annotated if not self._ledger.pod_refs(each)),
        }

    def _release_guesses(self, snapshot: Snapshot, gone: Iterable[PodId]) -> list[bool]:
        """Release what was given to a listed pod on a guess, and two looks did not find with it."""
        found = unshown(self._ledger, snapshot, gone)
        again = [key for key, held in found.items() if self._unshown.get(key) is held]
        for ref, resource in again:
            self._ledger.release(ref, resource)
        self._unshown = found
        return [True for _ in again]

    def registered(self) -> None:
        """Record that the plugin has registered: a kubelet that restarted tries pods anew."""
        with self.state:
            self._resolver.forget_kubelet()
            self._ledger.new_kubelet()
            self._forget_half_served()
            self._offers.registered(self._ledger)
            self._reservations.clear()
        self.refresh()

    def _forget_half_served(self) -> None:
        """Forget what init containers hold in part, of which a new kubelet knows nothing."""
        for ref in half_served(self._ledger, self._resolver.update().view):
            self._ledger.release_container(ref)

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
        with self.state:
            hidden = self._resolver.update().hidden
            return free_places(self._ledger, self._table, resource, hidden=hidden)

    # --- enforcing -------------------------------------------------------------------

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here."""
        return self._coordinator.entitled(pod_uid, container)

    def sweep(self) -> None:
        """Release what enforcement made for pods that are gone."""
        self._coordinator.sweep()

    # --- planning --------------------------------------------------------------------

    def _policy_for(self, view: PodView | None) -> Policy:
        """Return what the pod's author wishes, else what the node's admin has set."""
        if view is None:
            # Of a pod that only the kubelet knows, half of what it asks for is yet to come:
            # that fits best where most is free.
            return Policy.SPREAD
        return Policy(view.wishes.policy) if view.wishes.policy else self._policy

    def _constraints(self, view: PodView | None) -> Constraints:
        """Return what the pod's author and a scheduler want."""
        if view is None:
            return Constraints()
        return Constraints(view.wishes, view.chosen, self._strict)

    def _attempt(self, attempt: Callable[[], _Found], context: CallContext, ask: Ask) -> _Found:
        """Settle a call, and where nobody can be asking, once more after another look."""
        try:
            with self._reconciling():
                return attempt()
        except ResolutionError:
            self._observer.look_again(context, ask)
        with self._reconciling():
            return attempt()

    @contextmanager
    def _reconciling(self) -> Iterator[None]:
        """Hold the lock; write what the kubelet's record has changed by then."""
        with self.state:
            try:
                yield
            finally:
                self._publisher.publish_all(self._resolver.take_changed())

    def _place(
        self,
        asker: Resolution,
        resource: Resource,
        offered: AbstractSet[str],
        must: Sequence[Ticket],
    ) -> _Placed:
        """Find places for whoever is asking.

        Where several may be, and nothing fits the likeliest, it may be another.
        """
        refusal: Refusal | None = None
        self._offers.offered(resource, offered, self._ledger, self._unhealthy)
        for each in (asker, *asker.rivals):
            view = self._resolver.pod_index.view(each.pod)
            try:
                placement = self._placement_for(each, view, resource, offered, must)
            except Refusal as error:
                refusal = refusal or error
            else:
                ids = frozenset(str(ticket) for ticket in placement.tickets)
                reservation = Reservation(each, view)
                if each is not asker:
                    self._resolver.admissions.settle_instead(each.pod)
                self._reservations.reserve(resource, ids, reservation, placement.plan)
                return _Placed(reservation, placement, ids)
        assert refusal is not None  # noqa: S101 -- there is one asker at least
        raise refusal

    def _placement_for(
        self,
        asker: Resolution,
        view: PodView | None,
        resource: Resource,
        offered: AbstractSet[str],
        must: Sequence[Ticket],
    ) -> Placement:
        container = asker.container
        if view is None:
            container = at_least(container, self._table)
        pod = view.demand if view is not None else PodDemand((container,))
        request = PlacementRequest(
            ref_of(asker),
            container,
            pod,
            resource,
            self._policy_for(view),
            offered,
            must,
            plan=self._reservations.plan(asker.pod),
            assumptions=Assumptions(
                tuple(self._resolver.pod_index.hidden),
                self._reservations.reserved(
                    asker, live=self._resolver.pod_index.live, ledger=self._ledger
                ),
                self._offers.withheld(resource, self._ledger),
            ),
            constraints=self._constraints(view),
            certain=asker.evidence is not Evidence.ORDER,
        )
        return self._placer.place(request, self._ledger)

    def _refused(
        self,
        call: str,
        asker: Sequence[Resolution],
        resource: Resource,
        size: int,
        error: Refusal,
    ) -> None:
        """Record that a call is being refused, which ends the pod that it was made for.

        Where several may have been asking, nobody is refused in another's name.
        """
        ref = ref_of(asker[0]) if asker and not asker[0].rivals else None
        if asker:
            certain = asker[0].evidence is not Evidence.ORDER
            with self.state:
                self._resolver.refuse(ref_of(asker[0]), certain=certain)
                self._reservations.drop(asker[0].pod)
        self._decision_log.refused(call, ref, resource, size, str(error))

    # --- assigning -------------------------------------------------------------------

    def _vet_any(
        self, asker: Resolution, resource: Resource, tickets: Sequence[Ticket]
    ) -> tuple[Reservation, Grant]:
        """Find whose of the containers that may be asking these places can be."""
        refusal: Refusal | None = None
        for each in (asker, *asker.rivals):
            reservation = Reservation(each, self._resolver.pod_index.view(each.pod))
            try:
                grant = self._vet(reservation, resource, tickets)
            except Refusal as error:
                refusal = refusal or error
            else:
                if each is not asker:
                    self._resolver.admissions.settle_instead(each.pod)
                return reservation, grant
        assert refusal is not None  # noqa: S101 -- there is one asker at least
        raise refusal

    def _vet(
        self, reservation: Reservation, resource: Resource, tickets: Sequence[Ticket]
    ) -> Grant:
        """Check that these places can be this container's."""
        resolution = reservation.resolution
        ref = ref_of(resolution)
        ids = [str(ticket) for ticket in tickets]
        check_free(
            resource,
            [each for each in ids if self._ledger.taken(resource, each, but_reusable_by=ref.pod)],
        )
        grant = translate(resource, tickets)
        check_request(resolution.container.demand, grant)
        other = grant_of(self._ledger, self._table, ref, resource.other)
        if resource is Resource.CORE:
            check_together(grant, other)
        else:
            check_together(other, grant)
        return grant

    def _assign(
        self, ref: ContainerRef, reservation: Reservation, resource: Resource, ids: frozenset[str]
    ) -> None:
        """Assign places that were vetted, and tell the API once that is all of its pod's."""
        resolution = reservation.resolution
        holding = Holding(ids, resolution.evidence, answered=True)
        with self.state:
            self._resolver.answered(ref)
            self._ledger.assign(ref, resolution.container.kind, resource, holding)
            self._offers.answered(self._ledger)
            self._reservations.complete(ref.pod, self._ledger)
            if reservation.view is None:
                self._reservations.note_unadvised(ids, self._ledger)
            self._publisher.publish(reservation.view, parts=True)

    # --- proving ---------------------------------------------------------------------

    def _prove(self, resource: Resource, ids: frozenset[str]) -> ContainerRef | None:
        """Ask the kubelet's record who holds *ids*, and apply that."""
        with self.state:
            guessed = self._ledger.find(resource, ids)
        try:
            snapshot = self._shared.list(within=PROOF_WITHIN)
        except Unavailable as error:
            self._decision_log.unproven(guessed[0] if guessed else None, ids, str(error))
            return None
        with self.state:
            views_of = self._resolver.update().views_of
            guessed = self._ledger.find(resource, ids)  # what ended meanwhile is released
            found = holder(snapshot, resource, ids, views_of=views_of, owners=self._ledger.owners)
            if found is None:
                certain = [each for each in guessed if not self._by_order(each, resource)]
                listed = match_entries(snapshot.pods, views_of, self._ledger.owners)
                check_unshared(listed, resource, ids, certain)
                reason = why_unproven(self._ledger, guessed)
                self._decision_log.unproven(guessed[0] if guessed else None, ids, reason)
                return None
            ref, held = found
            wrong = apply_record(self._ledger, ref, held)
            if wrong or ref not in guessed:
                self._publisher.publish_all({ref.pod, *(each.guessed.pod for each in wrong)})
        for correction in wrong:
            self._decision_log.corrected(correction)
        return ref

    def _by_order(self, ref: ContainerRef, resource: Resource) -> bool:
        """Return whether it was merely guessed that *ref* got what it holds."""
        held = self._ledger.holding(ref, resource)
        return held is not None and held.evidence is Evidence.ORDER
