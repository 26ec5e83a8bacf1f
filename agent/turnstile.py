"""The turnstile: the order in which the pure decisions are made, and what they are made from.

Three calls come in, one per RPC of a device plugin: :meth:`Turnstile.prefer` resolves and
places, :meth:`Turnstile.allocate` translates, :meth:`Turnstile.prestart` proves. What they
need from outside arrives through Protocols. The lock covers memory only and is never
held while something outside is asked.
"""

import threading
from collections.abc import Callable, Sequence

from agent.allocations import grant_of
from agent.answer import Answer
from agent.believed import BelievedPods
from agent.chooser import Beliefs, Guidance
from agent.entitlement import Entitlement
from agent.errors import Refusal, Unavailable
from agent.free import free_places
from agent.grant import Grant, check_free, check_request, check_together, translate
from agent.ledger import Claim, Holding, Ledger
from agent.ledgercopy import Held, inherit
from agent.links import Links
from agent.lookout import WITNESS_WITHIN, Lookout
from agent.offers import Offers
from agent.place import Policy
from agent.podview import PodView
from agent.ports import Enforcer, Journal, Outbox, PodSource, RecordSource
from agent.promises import Promises, Reservation
from agent.proof import (
    add_unbooked,
    believe,
    check_start,
    check_unshared,
    holder,
    is_over,
    proven,
    why_unproven,
)
from agent.records import Records
from agent.roster import Roster
from agent.seating import at_least, seat
from agent.sharing import SharedRecord
from agent.tickets import Resource, Ticket, TicketBook
from agent.witness import identify_entries
from agent.workshop import Workshop
from contract.allocation import Evidence
from contract.demand import PodDemand

PROOF_WITHIN = 2.0
"""Seconds ``PreStartContainer`` waits for it; the kubelet gives it 30 (fact K10)."""


class Turnstile:
    """Settles every call of the kubelet for one node."""

    def __init__(  # noqa: PLR0913 -- the collaborators of the whole node, by keyword
        self,
        *,
        book: TicketBook,
        pods: PodSource,
        record: RecordSource,
        outbox: Outbox,
        journal: Journal,
        answer: Callable[[Grant], Answer],
        enforcer: Enforcer | None = None,
        unhealthy: Callable[[str], str] = lambda _uuid: "",
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
    ) -> None:
        """Start with an empty ledger.

        Args:
            book: the node's tickets.
            pods: the pods of this node.
            record: the kubelet's own record.
            outbox: takes finished allocations.
            journal: takes decisions.
            answer: turns a grant into an ``Allocate`` answer.
            enforcer: what holds containers to their limits, and adds to answers.
            unhealthy: why a card, by UUID, may not be given out; empty when it may.
            policy: which card a share prefers, unless its pod wishes otherwise.
            strict: whether a scheduler's choice of cards that does not fit is refused.
        """
        self._book = book
        self._pods = BelievedPods(pods, book)
        self._shared = SharedRecord(record)
        self._journal = journal
        self._answer = answer
        self._links = Links(book.inventory)
        self._unhealthy = unhealthy
        self._policy = policy
        self._strict = strict
        self._lock = threading.Lock()
        self._ledger = Ledger()
        roster = Roster()
        self._records = Records(ledger=self._ledger, book=book, roster=roster, outbox=outbox)
        self._lookout = Lookout(
            ledger=self._ledger,
            roster=roster,
            pods=self._pods,
            record=record,
            journal=journal,
            lock=self._lock,
            on_changed=self._records.tell_of,
        )
        self._workshop = Workshop(
            enforcer=enforcer,
            ledger=self._ledger,
            book=book,
            lookout=self._lookout,
            record=self._shared,
            lock=self._lock,
        )
        self._promises = Promises()
        self._offers = Offers(book)

    # --- the three calls -------------------------------------------------------------

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Settle who is asking, place it, and give the IDs of its places.

        Raises:
            Refusal: nobody can be asking this, or nothing fits.
        """
        claim: Claim | None = None
        try:
            must_tickets = self._book.read(resource, must)
            offered = frozenset(available)
            with self._lock:  # what nobody holds cannot have been given back
                held = (self._ledger.held(resource) & offered) - frozenset(must)
            scene = self._lookout.look(frozenset((resource, each) for each in held))
            with self._lock:
                resolution, view = self._lookout.resolve(resource, size, must, scene)
                claim = Claim(resolution.pod, resolution.container.name)
                self._offers.heard(resource, offered, self._ledger, self._unhealthy)
                container = resolution.container
                if view is None:
                    container = at_least(container, self._book)
                seating = seat(
                    claim,
                    container,
                    view.demand if view is not None else PodDemand((container,)),
                    resource,
                    book=self._book,
                    ledger=self._ledger,
                    links=self._links,
                    unhealthy=self._unhealthy,
                    policy=self._policy_for(view),
                    available=offered,
                    must=must_tickets,
                    plan=self._promises.plan(claim.pod),
                    beliefs=Beliefs(
                        tuple(self._lookout.roster.hidden),
                        self._promises.reserved(
                            resolution, live=self._lookout.roster.live, ledger=self._ledger
                        ),
                        self._offers.kept_back(resource, self._ledger),
                    ),
                    guidance=self._guided(view),
                    sure=resolution.evidence is not Evidence.ORDER,
                )
                tickets = seating.tickets
                ids = frozenset(str(ticket) for ticket in tickets)
                self._promises.make(resource, ids, Reservation(resolution, view), seating.plan)
        except Refusal as error:
            self._rejected(claim)
            self._journal.refused("prefer", claim, resource, size, str(error))
            raise
        if seating.replaced:
            self._journal.replaced(claim, seating.replaced, seating.cards)
        self._journal.decided("prefer", claim, resource, resolution.evidence, ids)
        return [str(ticket) for ticket in tickets]

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate IDs into what their container gets, and book them.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        ids = frozenset(device_ids)
        claim: Claim | None = None
        try:
            tickets = self._book.read(resource, device_ids)
            with self._lock:
                reservation = self._promises.redeem(resource, ids)
            evidence = Evidence.TICKET
            if reservation is None:
                scene = self._lookout.look(named=frozenset((resource, each) for each in device_ids))
                with self._lock:
                    resolution, view = self._lookout.resolve(
                        resource, len(device_ids), device_ids, scene
                    )
                reservation = Reservation(resolution, view)
                evidence = resolution.evidence
            claim = Claim(reservation.resolution.pod, reservation.resolution.container.name)
            with self._lock:
                grant = self._vet(claim, reservation, resource, tickets)
            # Before anything is booked: where it cannot be made, nothing has happened.
            found = self._answer(grant)
            made = self._workshop.make(
                claim, ids, grant, then=lambda: self._book_in(claim, reservation, resource, ids)
            )
        except Refusal as error:
            self._rejected(claim)
            self._journal.refused("allocate", claim, resource, len(device_ids), str(error))
            raise
        self._journal.decided("allocate", claim, resource, evidence, ids)
        return found.plus(made)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove that the container about to start is the one its places were given to.

        Raises:
            Refusal: what it holds contradicts what it asks for; the start is vetoed.
        """
        ids = frozenset(device_ids)
        claim: Claim | None = None
        try:
            with self._lock:
                claim = proven(self._ledger, resource, ids)
            if claim is None:
                claim = self._prove(resource, ids)
            if claim is not None:
                with self._lock:
                    view = self._lookout.roster.view(claim.pod)
                    check_start(self._ledger, self._book, claim, view)
            if resource is Resource.CORE:
                self._workshop.start(claim, ids)
        except Refusal as error:
            self._journal.refused("prestart", claim, resource, len(device_ids), str(error))
            raise
        if claim is not None:
            self._journal.decided("prestart", claim, resource, Evidence.RECORD, ids)

    # --- keeping up ------------------------------------------------------------------

    def rebuild(self) -> bool:
        """Read the ledger off the kubelet's record; tell whether it could be had."""
        scene = self._lookout.look(asked=False)
        if scene.snapshot is None:
            return False
        with self._lock:
            self._lookout.reconcile(scene.snapshot)
        return True

    def holdings(self) -> list[Held]:
        """Return all that the ledger has, for a successor."""
        with self._lock:
            return [Held(claim, kind, dict(held)) for claim, kind, held in self._ledger.claims()]

    def inherit(self, held: Sequence[Held]) -> None:
        """Book what a predecessor knew, where the kubelet's record says nothing of it."""
        with self._lock:
            for each in held:
                inherit(self._ledger, each)

    def refresh(self, *, owed: bool = True) -> bool:
        """Take in what the kubelet's record shows, on a node where no call comes any more.

        An agent that was killed after it answered owes a record to a pod that nothing will
        happen to any more. And what ended pods held is free. Calls of the kubelet may come
        meanwhile: nothing is taken away from a pod that the API or the record shows holding it.

        Args:
            owed: look after pods that wait for their record, too.

        Returns:
            Whether something has become free.
        """
        with self._lock:
            # Asked before the record: what is booked from here on may not be in it.
            gone = self._lookout.gone()
            if not gone and not (owed and self._lookout.know().owed):
                return False
        try:
            snapshot = self._shared.list(within=WITNESS_WITHIN)
        except Unavailable:
            return False
        with self._lock:
            roster = self._lookout.know()
            for each in identify_entries(snapshot.pods, roster.views_of, self._ledger.owners):
                if each.pod in roster.owed:
                    add_unbooked(self._ledger, each)
            released = [
                self._ledger.release_pod(pod)
                for pod in gone
                if is_over(self._ledger, snapshot, pod, roster.view(pod))
            ]
            self._records.tell_of(roster.owed)
        return any(released)

    def registered(self) -> None:
        """Note that the plugin has registered: a kubelet that restarted tries pods anew."""
        with self._lock:
            self._lookout.forget_kubelet()
            self._ledger.new_kubelet()
            self._offers.registered(self._ledger)
            self._promises.clear()
        self.refresh()

    def catch_up(self, view: PodView) -> None:
        """Write the allocation of a pod that has one and does not show it yet."""
        view = self._pods.believe(view)
        if view.assigned or view.terminal or not view.demand:
            return
        with self._lock:
            # A pod that was served while the API was away is booked by its name alone.
            self._ledger.adopt_names({view.id})
            self._records.tell(view)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free places by card."""
        with self._lock:
            hidden = self._lookout.know().hidden
            return free_places(self._ledger, self._book, resource, hidden=hidden)

    # --- enforcing -------------------------------------------------------------------

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Give what a running container may use; ``None`` when it holds nothing here."""
        return self._workshop.entitled(pod_uid, container)

    def sweep(self) -> None:
        """Let go of what enforcement made for pods that are gone."""
        self._workshop.sweep()

    # --- planning --------------------------------------------------------------------

    def _policy_for(self, view: PodView | None) -> Policy:
        """Give what the pod's author wishes, else what the node's admin has set."""
        if view is None:
            # Of a pod that only the kubelet knows, half of what it asks for is yet to come:
            # that fits best where most is free.
            return Policy.SPREAD
        return Policy(view.wishes.policy) if view.wishes.policy else self._policy

    def _guided(self, view: PodView | None) -> Guidance:
        """Give what the pod's author and a scheduler want."""
        if view is None:
            return Guidance()
        return Guidance(view.wishes, view.chosen, self._strict)

    def _rejected(self, claim: Claim | None) -> None:
        """Note that a call made for *claim* is being refused, which ends its pod."""
        self._lookout.rejected(claim)
        if claim is not None:
            with self._lock:
                self._promises.drop(claim.pod)

    # --- booking ---------------------------------------------------------------------

    def _vet(
        self,
        claim: Claim,
        reservation: Reservation,
        resource: Resource,
        tickets: Sequence[Ticket],
    ) -> Grant:
        """Check that these places can be this container's; lock held."""
        resolution = reservation.resolution
        ids = [str(ticket) for ticket in tickets]
        check_free(
            resource,
            [each for each in ids if self._ledger.taken(resource, each, but_reusable_by=claim.pod)],
        )
        grant = translate(resource, tickets)
        check_request(resolution.container.demand, grant)
        other = grant_of(self._ledger, self._book, claim, resource.other)
        if resource is Resource.CORE:
            check_together(grant, other)
        else:
            check_together(other, grant)
        return grant

    def _book_in(
        self, claim: Claim, reservation: Reservation, resource: Resource, ids: frozenset[str]
    ) -> None:
        """Book places that were vetted, and tell the API once that is all of its pod's."""
        resolution = reservation.resolution
        holding = Holding(ids, resolution.evidence, answered=True)
        with self._lock:
            self._lookout.answered(claim)
            self._ledger.record(claim, resolution.container.kind, resource, holding)
            self._offers.answered(self._ledger)
            self._promises.fulfilled(claim.pod, self._ledger)
            self._records.tell(reservation.view, parts=True)

    # --- proving ---------------------------------------------------------------------

    def _prove(self, resource: Resource, ids: frozenset[str]) -> Claim | None:
        """Ask the kubelet's record who holds *ids*, and believe it."""
        with self._lock:
            guessed = self._ledger.find(resource, ids)
        try:
            snapshot = self._shared.list(within=PROOF_WITHIN)
        except Unavailable as error:
            self._journal.unproven(guessed[0] if guessed else None, ids, str(error))
            return None
        with self._lock:
            views_of = self._lookout.know().views_of
            found = holder(snapshot, resource, ids, views_of=views_of, owners=self._ledger.owners)
            if found is None:
                sure = [each for each in guessed if not self._by_order(each, resource)]
                listed = identify_entries(snapshot.pods, views_of, self._ledger.owners)
                check_unshared(listed, resource, ids, sure)
                reason = why_unproven(self._ledger, guessed)
                self._journal.unproven(guessed[0] if guessed else None, ids, reason)
                return None
            claim, held = found
            wrong = believe(self._ledger, claim, held)
            if wrong or claim not in guessed:
                self._records.tell_of({claim.pod, *(each.guessed.pod for each in wrong)})
        for correction in wrong:
            self._journal.corrected(correction)
        return claim

    def _by_order(self, claim: Claim, resource: Resource) -> bool:
        """Tell whether it was merely guessed that *claim* got what it is booked for."""
        held = self._ledger.holding(claim, resource)
        return held is not None and held.evidence is Evidence.ORDER
