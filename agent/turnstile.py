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
from dataclasses import dataclass

from agent.allocations import allocations_of, grant_of
from agent.errors import GrantError, Refusal, Unavailable
from agent.grant import Grant, check_free, check_request, check_together, translate
from agent.inject import Answer
from agent.ledger import Claim, Correction, Holding, Ledger
from agent.place import Policy
from agent.podview import PodId, PodView
from agent.ports import Journal, Outbox, PodSource, RecordSource
from agent.resolve import Ask, Resolution, resolve
from agent.seating import free_places, seat
from agent.tickets import Resource, Ticket, TicketBook, count_of
from agent.witness import Identified, Snapshot, identify
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
        views: the pods known from the API.
        offered: the places the kubelet offers in this call.
    """

    snapshot: Snapshot | None
    views: Sequence[PodView]
    offered: AbstractSet[tuple[Resource, str]] = frozenset()


WITNESS_WITHIN = 1.0
"""Seconds a preferred call or ``Allocate`` waits for the kubelet's record."""

PROOF_WITHIN = 3.0
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
        self._outbox = outbox
        self._journal = journal
        self._answer = answer
        self._healthy = healthy
        self._policy = policy
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._reservations: OrderedDict[tuple[Resource, frozenset[str]], Reservation] = (
            OrderedDict()
        )
        self._plans: dict[Claim, tuple[str, ...]] = {}
        self._passed: frozenset[PodId] = frozenset()
        self._lacking: frozenset[PodId] = frozenset()  # as the last List that settled a call

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
            with self._lock:  # what nobody holds cannot have been given back
                held = self._ledger.held(resource) & {*available}.difference(must)
            scene = self._look(frozenset((resource, each) for each in held))
            with self._lock:
                resolution, view = self._resolve(resource, size, must, scene)
                claim = Claim(resolution.pod, resolution.container.name)
                cards, tickets = seat(
                    claim,
                    resolution.container,
                    view.demand if view is not None else PodDemand((resolution.container,)),
                    resource,
                    book=self._book,
                    ledger=self._ledger,
                    healthy=self._healthy,
                    policy=self._policy,
                    available=available,
                    must=must_tickets,
                    plan=self._plans.get(claim, ()),
                    views=scene.views,
                )
                self._plans[claim] = cards
                ids = frozenset(str(ticket) for ticket in tickets)
                self._reservations[resource, ids] = Reservation(resolution, view)
                if len(self._reservations) > _MOST_RESERVATIONS:
                    self._reservations.popitem(last=False)
        except Refusal as error:
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
                scene = self._look(frozenset((resource, each) for each in device_ids))
                with self._lock:
                    resolution, view = self._resolve(resource, len(device_ids), device_ids, scene)
                reservation = Reservation(resolution, view)
                evidence = resolution.evidence
            claim = Claim(reservation.resolution.pod, reservation.resolution.container.name)
            with self._lock:
                grant = self._book_in(claim, reservation, resource, tickets)
                finished = self._finished(reservation.view)
        except Refusal as error:
            self._journal.refused("allocate", claim, resource, len(device_ids), str(error))
            raise
        self._journal.decided("allocate", claim, resource, evidence, ids)
        if finished is not None:
            self._outbox.put(*finished)
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
                claim = self._proven(resource, ids)
            if claim is None:
                claim = self._prove(resource, ids)
            if claim is None:
                return
            with self._lock:
                self._check_start(claim)
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
            self._reconcile(scene.snapshot, scene)
        for view in scene.views:
            self.catch_up(view)
        return True

    def registered(self) -> None:
        """Note that the plugin has registered: a kubelet that restarted tries pods anew."""
        with self._lock:
            self._passed = self._lacking = frozenset()
            self._reservations.clear()

    def catch_up(self, view: PodView) -> None:
        """Write the allocation of a pod that has one and does not show it yet."""
        if view.assigned or view.terminal or not view.demand:
            return
        with self._lock:
            # A pod that was served while the API was away is booked by its name alone.
            self._ledger.adopt_names({view.id})
            finished = self._finished(view)
        if finished is not None:
            self._outbox.put(*finished)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count the free places by card."""
        with self._lock:
            return free_places(self._ledger, self._book, resource, views=self._pods.views())

    # --- looking ---------------------------------------------------------------------

    def _look(self, offered: AbstractSet[tuple[Resource, str]] = frozenset()) -> Scene:
        """Ask the kubelet, then the API for the few pods it shows that we do not know yet."""
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable as error:
            self._journal.blind(str(error))
            return Scene(None, self._pods.views(), offered)
        live = {view.id.key for view in self._pods.views() if not view.terminal}
        unknown = [pod for pod in snapshot.pods if pod.key not in live]
        for pod in unknown[:_MOST_FETCHES]:
            try:
                self._pods.fetch(pod.namespace, pod.name)
            except Unavailable:
                break  # List alone is enough to go on; the watch catches up later
        return Scene(snapshot, self._pods.views(), offered)

    def _reconcile(self, snapshot: Snapshot, scene: Scene) -> tuple[Identified, ...]:
        listed = identify(snapshot, scene.views, self._ledger.owners)
        self._passed &= {each.pod for each in listed}
        finished = self._passed | {view.id for view in scene.views if view.terminal}
        live = {view.id for view in scene.views if not view.terminal}
        for correction in self._ledger.reconcile(
            listed, finished=finished, live=live, offered=scene.offered
        ):
            self._journal.corrected(correction)
            # The guessed pod was lacking while the proven one was served: it had its turn (K8).
            self._passed |= {correction.guessed.pod} & self._lacking
        present = live | {each.pod for each in listed}
        self._plans = {claim: plan for claim, plan in self._plans.items() if claim.pod in present}
        return listed

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
        views, listed = scene.views, None
        if scene.snapshot is None:
            self._release_gone(views)
        else:
            listed = self._reconcile(scene.snapshot, scene)
        owners = {
            self._ledger.owners[resource, device_id]
            for device_id in named
            if (resource, device_id) in self._ledger.owners
        }
        if len(owners) > 1:
            raise GrantError(
                f"places of {resource} of {len(owners)} pods were named together: "
                + ", ".join(sorted(map(str, owners)))
            )
        ask = Ask(resource, size, owners.pop() if owners else None)
        resolution = resolve(
            ask, views=views, served=self._served, listed=listed, passed=self._passed
        )
        self._lacking = frozenset(each.pod for each in listed or () if _lacks(each))
        self._passed = (self._passed | self._lacking) - {resolution.pod}
        view = next((each for each in views if each.id == resolution.pod), None)
        return resolution, view

    def _release_gone(self, views: Sequence[PodView]) -> None:
        """Without a witness, free what pods held that the API no longer shows as live."""
        live = {view.id for view in views if not view.terminal}
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
        self._ledger.record(
            claim, resolution.container.kind, resource, Holding(ids, resolution.evidence)
        )
        return grant

    def _finished(self, view: PodView | None) -> tuple[PodView, dict[str, Allocation]] | None:
        """Give a pod's allocations once they are complete and its record does not show them."""
        if view is None:
            return None
        try:
            found = allocations_of(self._ledger, self._book, view)
        except GrantError:
            return None  # it holds places of a card this node no longer has
        return (view, found) if found and found != view.recorded else None

    # --- proving ---------------------------------------------------------------------

    def _proven(self, resource: Resource, ids: frozenset[str]) -> Claim | None:
        """Give the container that the kubelet's record has already shown to hold *ids*."""
        for claim in self._ledger.find(resource, ids):
            held = self._ledger.holding(claim, resource)
            if held is not None and held.proven:
                return claim
        return None

    def _prove(self, resource: Resource, ids: frozenset[str]) -> Claim | None:
        """Ask the kubelet's record who holds *ids*, and believe it."""
        with self._lock:
            guessed = self._ledger.find(resource, ids)
        try:
            snapshot = self._record.list(within=PROOF_WITHIN)
        except Unavailable as error:
            self._journal.unproven(guessed[0] if guessed else None, ids, str(error))
            return None
        with self._lock:
            views = self._pods.views()
            listed = identify(snapshot, views, self._ledger.owners)
            holders = [
                Claim(each.pod, container.name)
                for each in listed
                for container in each.listed.containers
                if container.held.get(resource) == ids
            ]
            if not holders:
                init = [c for c in guessed if self._ledger.kind(c) is ContainerKind.INIT]
                reason = (
                    "ordinary init containers are not in the kubelet's record"
                    if init
                    else "the kubelet's record shows nobody holding exactly these"
                )
                self._journal.unproven(guessed[0] if guessed else None, ids, reason)
                return None
            claim = holders[0]
            finished = self._believe(claim, resource, ids, guessed, views)
        for each in finished:
            self._outbox.put(*each)
        return claim

    def _believe(
        self,
        claim: Claim,
        resource: Resource,
        ids: frozenset[str],
        guessed: Sequence[Claim],
        views: Sequence[PodView],
    ) -> list[tuple[PodView, dict[str, Allocation]]]:
        """Book *ids* to the container that the record shows; give the allocations that changed."""
        if claim in guessed:
            self._ledger.prove(claim, resource)
            return []
        wrong = [c for c in guessed if self._ledger.kind(c) is not ContainerKind.INIT]
        for each in wrong:
            self._journal.corrected(Correction(resource, ids, each, claim))
            self._ledger.release_container(each)
        self._ledger.record(
            claim, ContainerKind.MAIN, resource, Holding(ids, Evidence.RECORD, proven=True)
        )
        touched = {claim.pod, *(each.pod for each in wrong)}
        changed = (self._finished(view) for view in views if view.id in touched)
        return [each for each in changed if each is not None]

    def _check_start(self, claim: Claim) -> None:
        """Veto a container whose devices contradict each other or its request."""
        view = next((each for each in self._pods.views() if each.id == claim.pod), None)
        container = view.demand.of(claim.container) if view is not None else None
        grants = {
            resource: grant_of(self._ledger, self._book, claim, resource) for resource in Resource
        }
        if container is not None:
            for grant in grants.values():
                if grant is not None:
                    check_request(container.demand, grant)
        check_together(grants[Resource.CORE], grants[Resource.MEMORY])


def _lacks(each: Identified) -> bool:
    """Tell whether a listed pod asks for something that ``List`` does not show it holding."""
    if each.view is None or each.view.terminal:
        return False
    return any(
        count_of(container.demand, resource) and not each.listed.held(container.name, resource)
        for container in each.view.demand.containers
        if container.kind is not ContainerKind.INIT
        for resource in Resource
    )
