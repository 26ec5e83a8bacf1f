"""Keeping the ledger true where no call comes: the kubelet's record, pods that end, a handover."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.half_served import half_served
from agent.allocator.model.ledger import ContainerRef, Holding
from agent.allocator.model.ledger_copy import Held, Knowledge, inherit
from agent.allocator.model.pod_view import PodId
from agent.allocator.model.podresources import MatchedPod, Snapshot, match_entries
from agent.allocator.model.ports import RecordSource
from agent.allocator.node_state import NodeState
from agent.allocator.proof import assign_listed, holds_nothing, unshown
from agent.allocator.resolver.observer import WITNESS_WITHIN, Observer
from agent.allocator.resolver.pod_index import PodIndex
from agent.allocator.resolver.resolver import Resolver
from agent.errors import Unavailable
from contract.resource import Resource


class Reconciler:
    """Brings the ledger in line with what has happened on the node and in the API."""

    def __init__(
        self,
        *,
        state: NodeState,
        resolver: Resolver,
        observer: Observer,
        publisher: AllocationPublisher,
        record: RecordSource,
    ) -> None:
        """Keep *state* true, by the kubelet's *record* and what *observer* sees."""
        self._state = state
        self._ledger = state.ledger
        self._resolver = resolver
        self._observer = observer
        self._publisher = publisher
        self._record = record
        self._inherited: dict[tuple[ContainerRef, Resource], frozenset[str]] = {}
        self._unshown: Mapping[tuple[ContainerRef, Resource], Holding] = {}

    def rebuild(self, *, inheriting: bool = False) -> bool:
        """Read the ledger off the kubelet's record; return whether it could be had.

        Args:
            inheriting: ``inherit`` comes next, and nothing is written before, whoever asks for
                it: of ordinary init containers the kubelet's record says nothing (K4), a
                predecessor may.
        """
        context = self._observer.look()
        with self._state if inheriting else self._publisher.reconciling(self._resolver):
            there = set(self._resolver.update().live)
            if context.snapshot is not None:
                there |= self._resolver.reconcile(context.snapshot).pods
            self._resolver.admissions.add_there_at_start(there)
            if inheriting:
                self._publisher.defer()
        return context.snapshot is not None

    def registered(self) -> None:
        """Record that the plugin has registered: a kubelet that restarted tries pods anew."""
        with self._state:
            self._resolver.forget_kubelet()
            self._ledger.new_kubelet()
            self._forget_half_served()
            self._state.offers.registered(self._ledger)
            self._state.reservations.new_kubelet(self._ledger)
        self.refresh()

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
        with self._state:
            # Asked before the kubelet's record: what is assigned from here on may not be in it.
            gone = self._resolver.gone()
            if not gone and not (unpublished and self._incomplete(self._resolver.update())):
                return False
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable:
            return False
        with self._state:
            pod_index = self._resolver.update()
            incomplete = self._incomplete(pod_index)
            for each in match_entries(snapshot.pods, pod_index.views_of, self._ledger.owners):
                if each.pod in incomplete:
                    self._take_over(each, gone)
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

    def _take_over(self, each: MatchedPod, gone: Collection[PodId]) -> None:
        """Assign to a pod that runs what it holds in the name of one that had its name before.

        That one left the API before the kubelet came to it, which the watch told too late.
        """
        if each.view is None or not each.view.running or self._ledger.pod_refs(each.pod):
            return
        owners = {self._ledger.owners.get(one) for one in each.listed.each_held()}
        owner = owners.pop() if len(owners) == 1 else None
        if owner is not None and owner.key == each.pod.key and owner in gone:
            self._ledger.hand_over(owner, each.pod)

    def _release_guesses(self, snapshot: Snapshot, gone: Iterable[PodId]) -> list[bool]:
        """Release what was given to a listed pod on a guess, and two looks did not find with it."""
        found = unshown(self._ledger, snapshot, gone)
        again = [key for key, held in found.items() if self._unshown.get(key) is held]
        for ref, resource in again:
            self._ledger.release(ref, resource)
        self._unshown = found
        return [True for _ in again]

    def _forget_half_served(self) -> None:
        """Forget what init containers hold in part, of which a new kubelet knows nothing."""
        for ref in half_served(self._ledger, self._resolver.update().view):
            self._ledger.release_container(ref)

    def knowledge(self) -> Knowledge:
        """Return what the kubelet's record does not tell a successor."""
        with self._state:
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
        with self._state:
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
