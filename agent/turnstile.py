"""The turnstile: the order in which the pure decisions are made, and what they are made from.

Three calls come in, one per RPC of a device plugin: :meth:`Turnstile.prefer` resolves and
places, :meth:`Turnstile.allocate` translates, :meth:`Turnstile.prestart` proves. What they
need from outside arrives through Protocols. The lock covers memory only and is never
held while something outside is asked.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from agent.allocations import allocations_of, grant_of, is_news, served_inits
from agent.errors import GrantError, Refusal, ResolutionError, Unavailable
from agent.grant import Grant, check_free, check_request, check_together, translate
from agent.inject import Answer
from agent.ledger import Claim, Holding, Ledger
from agent.place import Policy
from agent.podview import Key, PodId, PodView
from agent.ports import Journal, Outbox, PodSource, RecordSource
from agent.proof import add_unbooked, believe, check_start, holder, proven, why_unproven
from agent.resolve import Ask, Resolution, is_recorded, lacks, resolve, waits
from agent.roster import Roster, Sighting
from agent.seating import at_least, free_places, seat
from agent.sharing import SharedRecord
from agent.tickets import Resource, Ticket, TicketBook
from agent.witness import Identified, Snapshot, identify_entries
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerKind, PodDemand


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places promised to one container between its preferred call and its ``Allocate``."""

    resolution: Resolution
    view: PodView | None


@dataclass(frozen=True, slots=True)
class Scene:
    """What could be seen when a call came in.

    Attributes:
        snapshot: the kubelet's record; ``None`` when it could not be had.
        offered: held places that the kubelet offers for anybody in this call.
        named: places that it has chosen itself.
    """

    snapshot: Snapshot | None
    offered: AbstractSet[tuple[Resource, str]] = frozenset()
    named: AbstractSet[tuple[Resource, str]] = frozenset()


WITNESS_WITHIN = 1.0
"""Seconds a preferred call or ``Allocate`` waits for the kubelet's record."""

PROOF_WITHIN = 2.0
"""Seconds ``PreStartContainer`` waits for it; the kubelet gives it 30 (fact K10)."""

_MOST_FETCHES = 4
_MOST_RESERVATIONS = 64


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
        healthy: Callable[[str], bool] = lambda _uuid: True,
        policy: Policy = Policy.BINPACK,
    ) -> None:
        """Start with an empty ledger.

        Args:
            book: the node's tickets.
            pods: the pods of this node.
            record: the kubelet's own record.
            outbox: takes finished allocations.
            journal: takes decisions.
            answer: turns a grant into an ``Allocate`` answer.
            healthy: whether a card, by UUID, may be given out.
            policy: which card a share prefers.
        """
        self._book = book
        self._pods = pods
        self._record = record
        self._shared = SharedRecord(record)
        self._outbox = outbox
        self._journal = journal
        self._answer = answer
        self._healthy = healthy
        self._policy = policy
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._roster = Roster()
        self._reservations: OrderedDict[tuple[Resource, frozenset[str]], Reservation] = (
            OrderedDict()
        )
        self._plans: dict[Claim, tuple[str, ...]] = {}
        self._passed: frozenset[PodId] = frozenset()
        self._lacking: frozenset[PodId] = frozenset()  # as the last List that settled a call
        self._begun: set[PodId] = set()  # answered by an Allocate of this kubelet

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
            scene = self._look(frozenset((resource, each) for each in held))
            with self._lock:
                resolution, view = self._resolve(resource, size, must, scene)
                claim = Claim(resolution.pod, resolution.container.name)
                container = resolution.container
                if view is None:
                    container = at_least(container, self._book)
                cards, tickets = seat(
                    claim,
                    container,
                    view.demand if view is not None else PodDemand((container,)),
                    resource,
                    book=self._book,
                    ledger=self._ledger,
                    healthy=self._healthy,
                    # Of a pod that only the kubelet knows, half of what it asks for is yet to
                    # come: that fits best where most is free.
                    policy=self._policy if view is not None else Policy.SPREAD,
                    available=offered,
                    must=must_tickets,
                    plan=self._plans.get(claim, ()),
                    hidden=self._roster.hidden,
                )
                self._plans[claim] = cards
                ids = frozenset(str(ticket) for ticket in tickets)
                self._reservations[resource, ids] = Reservation(resolution, view)
                if len(self._reservations) > _MOST_RESERVATIONS:
                    self._reservations.popitem(last=False)
        except Refusal as error:
            self._rejected(claim)
            self._journal.refused("prefer", claim, resource, size, str(error))
            raise
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
                reservation = self._reservations.pop((resource, ids), None)
            evidence = Evidence.TICKET
            if reservation is None:
                scene = self._look(named=frozenset((resource, each) for each in device_ids))
                with self._lock:
                    resolution, view = self._resolve(resource, len(device_ids), device_ids, scene)
                reservation = Reservation(resolution, view)
                evidence = resolution.evidence
            claim = Claim(reservation.resolution.pod, reservation.resolution.container.name)
            with self._lock:
                grant = self._book_in(claim, reservation, resource, tickets)
                self._tell(self._finished(reservation.view) or self._partly(reservation.view))
        except Refusal as error:
            self._rejected(claim)
            self._journal.refused("allocate", claim, resource, len(device_ids), str(error))
            raise
        self._journal.decided("allocate", claim, resource, evidence, ids)
        return self._answer(grant)

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
            if claim is None:
                return
            with self._lock:
                check_start(self._ledger, self._book, claim, self._roster.view(claim.pod))
        except Refusal as error:
            self._journal.refused("prestart", claim, resource, len(device_ids), str(error))
            raise
        self._journal.decided("prestart", claim, resource, Evidence.RECORD, ids)

    # --- keeping up ------------------------------------------------------------------

    def rebuild(self) -> bool:
        """Read the ledger off the kubelet's record; tell whether it could be had."""
        scene = self._look()
        if scene.snapshot is None:
            return False
        with self._lock:
            self._reconcile(scene.snapshot)
        return True

    def refresh(self) -> None:
        """Add to the ledger what the kubelet's record shows of pods that have no record yet.

        An agent that was killed after it answered owes a record to a pod that nothing will
        happen to any more. Calls of the kubelet may come meanwhile, so nothing is taken away.
        """
        with self._lock:
            self._roster.know(self._pods.views())
            if not self._roster.owed:
                return
        try:
            snapshot = self._shared.list(within=WITNESS_WITHIN)
        except Unavailable:
            return
        with self._lock:
            self._roster.know(self._pods.views())
            owed = self._roster.owed
            for each in identify_entries(snapshot.pods, self._roster.views_of, self._ledger.owners):
                if each.pod in owed:
                    add_unbooked(self._ledger, each)
            for pod in sorted(owed):
                self._tell(self._finished(self._roster.view(pod)))

    def registered(self) -> None:
        """Note that the plugin has registered: a kubelet that restarted tries pods anew."""
        with self._lock:
            self._passed = self._lacking = frozenset()
            self._begun.clear()
            self._reservations.clear()
        self.refresh()

    def catch_up(self, view: PodView) -> None:
        """Write the allocation of a pod that has one and does not show it yet."""
        if view.assigned or view.terminal or not view.demand:
            return
        with self._lock:
            # A pod that was served while the API was away is booked by its name alone.
            self._ledger.adopt_names({view.id})
            self._tell(self._finished(view))

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free places by card."""
        with self._lock:
            self._roster.know(self._pods.views())
            return free_places(self._ledger, self._book, resource, hidden=self._roster.hidden)

    # --- looking ---------------------------------------------------------------------

    def _look(
        self,
        offered: AbstractSet[tuple[Resource, str]] = frozenset(),
        *,
        named: AbstractSet[tuple[Resource, str]] = frozenset(),
    ) -> Scene:
        """Ask the kubelet, then the API for the few pods it shows that we do not know enough of."""
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable as error:
            self._journal.blind(str(error))
            return Scene(None, offered, named)
        for missing in (self._unknown, self._doubtful, self._returned):
            with self._lock:
                self._roster.know(self._pods.views())
                self._roster.stir(self._ledger.take_changed())
                asked = missing(snapshot)[:_MOST_FETCHES]
            try:
                for namespace, name in asked:
                    self._pods.fetch(namespace, name)
            except Unavailable:
                break  # List alone is enough to go on; the watch catches up later
        return Scene(snapshot, offered, named)

    def _unknown(self, snapshot: Snapshot) -> list[Key]:
        """Name the listed pods of which the API has told nothing."""
        return self._roster.unknown(snapshot)

    def _doubtful(self, snapshot: Snapshot) -> list[Key]:
        """Name the pods that may not be what the API has told of them, newest first.

        Only one pod can be waiting (fact K3). Where ``List`` keeps rejected ones (K8) there may
        be more, for as long as the API has not told how they ended. And a pod that was served
        and shows nothing of it has been replaced by another of the same name.
        """
        sighting = self._roster.sight(snapshot, self._ledger.owners)
        empty = [
            (each.view.line, each)
            for each in sighting.moving
            if each.view is not None and lacks(each) and not any(each.listed.each_held())
        ]
        waiting = [each for _, each in sorted(empty) if each.pod not in self._passed]
        replaced = [each.pod.key for each in waiting if self._was_served(each)]
        if len(waiting) > 1:
            return list(dict.fromkeys([*replaced, *(each.pod.key for each in waiting[::-1])]))
        return replaced

    def _returned(self, snapshot: Snapshot) -> list[Key]:
        """Name the ended pods whose names may have come back: if nobody else can be asking."""
        moving = self._roster.sight(snapshot, self._ledger.owners).moving
        explained = any(
            each.view is None or (each.pod not in self._passed and waits(each, self._served))
            for each in moving
        )
        return [] if explained else self._roster.ended(snapshot)

    def _was_served(self, each: Identified) -> bool:
        """Tell whether a listed pod had everything, by its own record or the kubelet's before."""
        if each.view is not None and is_recorded(each.view):
            return True
        return any(
            held is not None and held.proven
            for claim in self._ledger.pod_claims(each.pod)
            for held in (self._ledger.holding(claim, resource) for resource in Resource)
        )

    def _reconcile(
        self,
        snapshot: Snapshot,
        *,
        offered: AbstractSet[tuple[Resource, str]] = frozenset(),
        named: AbstractSet[tuple[Resource, str]] = frozenset(),
    ) -> Sighting:
        """Bring the book in line with the kubelet's record; lock held."""
        self._roster.know(self._pods.views())
        self._roster.stir(self._ledger.take_changed())
        sighting = self._roster.sight(snapshot, self._ledger.owners)
        self._passed &= sighting.pods
        ended = {each.pod for each in sighting.moving if each.view and each.view.terminal}
        begun = [each.pod for each in sighting.moving if each.pod in self._begun]
        booked = {pod: self._sure(pod) for pod in begun}
        for correction in self._ledger.reconcile(
            sighting.moving,
            resting=sighting.resting,
            finished=self._passed | ended,
            live=self._roster.live,
            offered=offered,
            named=named,
        ):
            self._journal.corrected(correction)
            # The guessed pod was lacking while the proven one was served: it had its turn (K8).
            self._passed |= {correction.guessed.pod} & self._lacking
        # What was answered to this kubelet and is gone from its record: the pod was rejected (K8).
        self._passed |= {pod for pod, sure in booked.items() if sure - self._sure(pod)}
        changed = self._ledger.take_changed()
        self._roster.stir(changed)
        for pod in sorted(changed):
            self._tell(self._finished(self._roster.view(pod)))
        self._roster.settle(
            each
            for each in sighting.moving
            if each.view is not None
            and not each.view.terminal
            and not waits(each, self._served)
            and self._ledger.agrees(each)
        )
        present = sighting.pods | self._roster.live
        self._begun &= present
        self._plans = {claim: plan for claim, plan in self._plans.items() if claim.pod in present}
        return sighting

    def _sure(self, pod: PodId) -> set[Claim]:
        """Give the containers of *pod* that were not merely guessed, but for ordinary init ones."""
        return {
            claim
            for claim in self._ledger.pod_claims(pod)
            if self._ledger.kind(claim) is not ContainerKind.INIT
            and all(
                held is None or held.evidence is not Evidence.ORDER
                for held in (self._ledger.holding(claim, resource) for resource in Resource)
            )
        }

    def _rejected(self, claim: Claim | None) -> None:
        """Note that the kubelet will not try a pod again: a call made for it is being refused."""
        if claim is not None:
            with self._lock:
                self._passed |= {claim.pod}

    # --- resolving -------------------------------------------------------------------

    def _served(self, pod: PodId, container: str, resource: Resource) -> bool:
        return self._ledger.holding(Claim(pod, container), resource) is not None

    def _resolve(
        self,
        resource: Resource,
        size: int,
        named: Iterable[str],
        scene: Scene,
    ) -> tuple[Resolution, PodView | None]:
        sighting = None
        if scene.snapshot is None:
            self._release_gone()
        else:
            sighting = self._reconcile(scene.snapshot, offered=scene.offered, named=scene.named)
        holders = {
            device_id: self._ledger.owners[resource, device_id]
            for device_id in named
            if (resource, device_id) in self._ledger.owners
        }
        # Only what an ordinary init container has left over can be named for its pod (K7).
        check_free(
            resource,
            [
                each
                for each, pod in holders.items()
                if self._ledger.taken(resource, each, but_reusable_by=pod)
            ],
        )
        owners = set(holders.values())
        if len(owners) > 1:
            raise GrantError(
                f"places of {resource} of {len(owners)} pods were named together: "
                + ", ".join(sorted(map(str, owners)))
            )
        ask = Ask(resource, size, owners.pop() if owners else None)
        resolution = self._settle(ask, sighting)
        moving = sighting.moving if sighting is not None else ()
        self._lacking = frozenset(each.pod for each in moving if lacks(each))
        self._passed = (self._passed | self._lacking) - {resolution.pod}
        return resolution, self._roster.view(resolution.pod)

    def _settle(self, ask: Ask, sighting: Sighting | None) -> Resolution:
        views = self._pods.views()
        if sighting is None:
            return self._settle_by_line(ask, views)
        resolution: Resolution | None = None
        try:
            return resolve(
                ask,
                views=views,
                served=self._served,
                listed=sighting.moving,
                passed=self._passed,
            )
        except ResolutionError:
            # A kubelet that does not list the pod it is admitting is no witness of it.
            shown = sighting.pods
            others = [each for each in views if each.id not in shown and not each.terminal]
            with suppress(ResolutionError):
                resolution = self._settle_by_line(ask, others)
            if resolution is None:
                raise
        self._journal.blind("PodResources: List does not show the pod that is being admitted")
        return resolution

    def _settle_by_line(self, ask: Ask, views: Sequence[PodView]) -> Resolution:
        """Settle without a witness."""
        try:
            return resolve(ask, views=views, served=self._served, listed=None)
        except ResolutionError:
            # Records that others wrote, such as in a manifest copied from a running pod, count
            # for nothing if somebody must be asking and nobody else can be.
            doubted = [replace(each, recorded={}) if each.recorded else each for each in views]
            with suppress(ResolutionError):
                return resolve(ask, views=doubted, served=self._served, listed=None)
            raise

    def _release_gone(self) -> None:
        """Without a witness, free what pods held that the API no longer shows as live."""
        self._roster.know(self._pods.views())
        live = self._roster.live
        keys = {pod.key for pod in live}
        for pod in {claim.pod for claim, _, _ in self._ledger.claims()}:
            if (pod not in live) if pod.uid else (pod.key not in keys):
                self._ledger.release_pod(pod)

    # --- booking ---------------------------------------------------------------------

    def _book_in(
        self,
        claim: Claim,
        reservation: Reservation,
        resource: Resource,
        tickets: Sequence[Ticket],
    ) -> Grant:
        resolution = reservation.resolution
        ids = frozenset(str(ticket) for ticket in tickets)
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
        self._begun.add(claim.pod)
        self._ledger.record(
            claim, resolution.container.kind, resource, Holding(ids, resolution.evidence)
        )
        if other is not None:
            self._plans.pop(claim, None)
        return grant

    def _finished(self, view: PodView | None) -> tuple[PodView, dict[str, Allocation]] | None:
        """Give a pod's allocations once they are complete and its record does not show them."""
        if view is None:
            return None
        try:
            found = allocations_of(self._ledger, self._book, view)
        except GrantError:
            return None  # it holds places of a card this node no longer has
        return (view, found) if found and is_news(found, view.recorded) else None

    def _partly(self, view: PodView | None) -> tuple[PodView, dict[str, Allocation]] | None:
        """Give what ordinary init containers got, of a pod that is not finished.

        Nobody else knows (fact K4): written now, an agent that is killed before the pod is
        complete has not forgotten it.
        """
        if view is None:
            return None
        found = served_inits(self._ledger, self._book, view)
        return (view, found) if is_news(found, view.recorded) else None

    def _tell(self, found: tuple[PodView, dict[str, Allocation]] | None) -> None:
        """Hand an allocation to the outbox, lock held: in the order in which they were made."""
        if found is not None:
            self._outbox.put(*found)

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
            self._roster.know(self._pods.views())
            found = holder(
                snapshot,
                resource,
                ids,
                views_of=self._roster.views_of,
                owners=self._ledger.owners,
            )
            if found is None:
                reason = why_unproven(self._ledger, guessed)
                self._journal.unproven(guessed[0] if guessed else None, ids, reason)
                return None
            claim, held = found
            self._roster.stir(self._ledger.take_changed())
            wrong = believe(self._ledger, claim, held)
            for pod in sorted(self._ledger.take_changed()):
                self._roster.stir((pod,))
                self._tell(self._finished(self._roster.view(pod)))
        for correction in wrong:
            self._journal.corrected(correction)
        return claim
