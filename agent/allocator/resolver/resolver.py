"""Which container is asking, from what the kubelet, the API and the ledger show together.

Keeps what follows from one call to the next: which pods are at rest, and which were rejected.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace

from agent.allocator.model.grant import check_free
from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import MatchedPod, Snapshot
from agent.allocator.model.ports import DecisionLog, PodSource
from agent.allocator.model.reconciliation import reconcile
from agent.allocator.resolver.admissions import Admissions
from agent.allocator.resolver.call_context import CallContext
from agent.allocator.resolver.last_answer import LastAnswer
from agent.allocator.resolver.pod_index import Observation, PodIndex
from agent.allocator.resolver.resolve import (
    Ask,
    Resolution,
    resolve,
    served_again,
    waits,
)
from agent.allocator.resolver.same_names import SameNames
from agent.allocator.resolver.unseen_inits import asking_unseen, keep_unseen
from agent.errors import GrantError, ResolutionError
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource


class Resolver:
    """Knows the node's pods, and finds the one that is asking.

    Not safe to share between threads: its owner's lock covers it and the ledger.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        pod_index: PodIndex,
        pods: PodSource,
        decision_log: DecisionLog,
    ) -> None:
        """Know nobody.

        Args:
            ledger: who holds what.
            pod_index: tells pods at rest from pods in motion; knows nobody yet.
            pods: the pods of this node.
            decision_log: takes corrections.
        """
        self.ledger = ledger
        self.pod_index = pod_index
        self._pods = pods
        self._decision_log = decision_log
        self._changed: set[PodId] = set()
        self.admissions = Admissions()
        self._last = LastAnswer(ledger, pod_index, decision_log)
        self._names = SameNames(ledger, pod_index)
        self._told: Observation | None = None  # in which no pods are confused

    def update(self) -> PodIndex:
        """Apply what the API has told."""
        if self.pod_index.update(self._pods.views()):
            self._names.adopt()
        return self.pod_index

    # --- looking ---------------------------------------------------------------------

    def observe(self, snapshot: Snapshot) -> Observation:
        """See which pod each listed entry is."""
        self.update()
        self.pod_index.invalidate(self.ledger.take_changed())
        observation = self.pod_index.observe(snapshot, self.ledger.owners)
        if observation is self._told:  # asked again, and nothing has happened since
            return observation
        confused = self._names.confused(observation)
        if confused is None:
            self._told = observation
            return observation
        self.ledger.hand_over(*confused)
        self.pod_index.invalidate({*confused, *self.ledger.take_changed()})
        return self.pod_index.observe(snapshot, self.ledger.owners)

    def reconcile(
        self,
        snapshot: Snapshot,
        *,
        offered: AbstractSet[tuple[Resource, str]] = frozenset(),
        named: AbstractSet[tuple[Resource, str]] = frozenset(),
    ) -> Observation:
        """Bring the ledger in line with the kubelet's record."""
        observation = self.observe(snapshot)
        admissions = self.admissions
        for pod, other in self._names.mistaken(observation):
            admissions.was_another(pod, other)
        admissions.forget_unlisted(observation.pods, self.pod_index.live)
        for each in observation.moving:
            self._last.take_over(each, offered)
            if each.view is None and each.pod in admissions.answered:
                keep_unseen(self.ledger, each, offered)
        ended = {each.pod for each in observation.moving if each.view and each.view.terminal}
        answered = [
            each.pod
            for each in observation.moving
            if each.pod in admissions.answered or self.pod_index.has_departed(each.pod)
        ]
        certain_before = {pod: self._certain_holders(pod) for pod in answered}
        admissions.gained(each.pod for each in observation.moving if self._gained(each))
        for correction in reconcile(
            self.ledger,
            observation.moving,
            resting=observation.resting,
            finished=admissions.rejected | ended,
            live=self.pod_index.live,
            offered=offered,
            named=named,
        ):
            self._decision_log.corrected(correction)
            admissions.guessed_wrongly(correction.guessed.pod)
        # What was answered to this kubelet and is gone from its record: the pod was rejected (K8).
        lost = [
            pod for pod, before in certain_before.items() if before - self._certain_holders(pod)
        ]
        admissions.reject(lost)
        for pod in lost:
            self.ledger.release_inits(pod)
        changed = self.ledger.take_changed()
        self.pod_index.invalidate(changed)
        self._changed |= changed
        self.pod_index.settle(
            each
            for each in observation.moving
            if each.view is not None
            and not each.view.terminal
            and not waits(each, self._served)
            and self.ledger.agrees(each)
        )
        return observation

    def take_changed(self) -> AbstractSet[PodId]:
        """Return the pods whose holdings the kubelet's record has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _gained(self, each: MatchedPod) -> bool:
        """Return whether the kubelet's record shows a pod holding what was not answered for it."""
        return any(
            ids and ((held := self.ledger.holding(ref, resource)) is None or held.ids != ids)
            for container in each.listed.containers
            for ref in (ContainerRef(each.pod, container.name),)
            for resource, ids in container.held.items()
        )

    def _certain_holders(self, pod: PodId) -> set[ContainerRef]:
        """Return the containers of *pod* that hold for certain, ordinary init ones left out."""
        return {
            ref
            for ref in self.ledger.pod_refs(pod)
            if self.ledger.kind(ref) is not ContainerKind.INIT
            and all(
                held is None or held.evidence is not Evidence.ORDER
                for held in (self.ledger.holding(ref, resource) for resource in Resource)
            )
        }

    def refuse(self, ref: ContainerRef | None, *, certain: bool = True) -> None:
        """Record that the kubelet will not try a pod again: a call made for it is being refused.

        Args:
            ref: the container, if it could be told.
            certain: whether it is known that it was asking, not only guessed.
        """
        if ref is not None:
            self.admissions.refuse(ref.pod, certain=certain)

    def answered(self, ref: ContainerRef) -> None:
        """Record that a call for *ref* is being answered."""
        self.admissions.answer(ref.pod)
        self._last.note(ref)

    def forget_kubelet(self) -> None:
        """Record that a kubelet has come anew: it tries every pod again."""
        self.admissions.forget()
        self._last.note(None)

    # --- resolving -------------------------------------------------------------------

    def _served(self, pod: PodId, container: str, resource: Resource) -> bool:
        return self.ledger.holding(ContainerRef(pod, container), resource) is not None

    def ask(self, resource: Resource, size: int, named: Iterable[str]) -> Ask:
        """Return what a call reveals about who is asking.

        Args:
            resource: for what.
            size: for how many places.
            named: places that the call speaks of.
        """
        owners = {self.ledger.owners.get((resource, each)) for each in named} - {None}
        return Ask(resource, size, owners.pop() if len(owners) == 1 else None)

    def resolve(
        self, resource: Resource, size: int, named: Collection[str], context: CallContext
    ) -> Resolution:
        """Settle who is asking.

        Args:
            resource: for what.
            size: for how many places.
            named: places that the call speaks of.
            context: what could be seen when it came in.

        Raises:
            Refusal: nobody can be asking this, or the places are other containers'.
        """
        observation = None
        guess: dict[Resource, Holding] = {}
        if context.snapshot is None:
            self.update()
            self._release_gone(context, frozenset((resource, each) for each in named))
        else:
            guess = self._last.guess()
            observation = self.reconcile(
                context.snapshot, offered=context.offered, named=context.named
            )
            guess = self._disproved(guess)
        holders = {
            device_id: self.ledger.owners[resource, device_id]
            for device_id in named
            if (resource, device_id) in self.ledger.owners
        }
        # Only what an ordinary init container has left over can be named for its pod (K7).
        check_free(
            resource,
            [
                each
                for each, pod in holders.items()
                if self.ledger.taken(resource, each, but_reusable_by=pod)
            ],
        )
        owners = set(holders.values())
        if len(owners) > 1:
            raise GrantError(
                f"places of {resource} of {len(owners)} pods were named together: "
                + ", ".join(sorted(map(str, owners)))
            )
        ask = self.ask(resource, size, named)
        resolution = self._settle(ask, observation)
        moving = observation.moving if observation is not None else ()
        for each in moving:
            if each.view is None and each.pod == resolution.pod:
                init = asking_unseen(self.ledger, each, ask)
                resolution = replace(resolution, container=init or resolution.container)
        asker, snapshot = resolution.pod, context.snapshot
        if guess and snapshot is not None and not self.admissions.has_come(asker, snapshot):
            self._last.transfer(guess, resolution)
        if sum(each.listed.key == resolution.pod.key for each in moving) > 1:
            self._names.tell_apart(resolution.pod)
        before = self.admissions.rejected
        self.admissions.settle(resolution.pod, observation, context.snapshot)
        rejected = self.admissions.rejected - before
        if (
            context.snapshot is not None
            and resolution.evidence is Evidence.WITNESS
            and any(self.ledger.pod_refs(each) for each in rejected)
        ):  # what these were answered is free
            self.reconcile(context.snapshot, offered=context.offered, named=context.named)
        return resolution

    def _disproved(self, guess: Mapping[Resource, Holding]) -> dict[Resource, Holding]:
        """Return the part of a guess that ``List`` shows with nobody: an init container's (K4)."""
        pod, found = self._last.disproved(guess)
        if pod is not None:
            self.admissions.disproved(pod)
        return found

    def _settle(self, ask: Ask, observation: Observation | None) -> Resolution:
        views = self._pods.views()
        if observation is None:
            return self._last.repair(ask, views) or self._settle_by_position(ask, views)
        try:
            return self.resolve_listed(ask, observation)
        except ResolutionError:
            waiting = [
                each
                for each in observation.moving
                if each.pod not in self.admissions.rejected and waits(each, self._served)
            ]
            resolution = served_again(ask, waiting, self._served)
            resolution = resolution or self._begun_again(ask, observation)
            if resolution is not None:
                return resolution
            if waiting:  # it is one of those (fact K3)
                raise
            # A kubelet that does not list the pod it is admitting is no witness of it.
            shown = observation.pods
            others = [each for each in views if each.id not in shown and not each.terminal]
            with suppress(ResolutionError):
                resolution = self._settle_by_position(ask, others)
            if resolution is None:
                raise
        self._decision_log.podresources_unavailable(
            "PodResources: List does not show the pod that is being admitted"
        )
        return resolution

    def _begun_again(self, ask: Ask, observation: Observation) -> Resolution | None:
        """Find what this kubelet serves again of a pod in which nothing follows init containers.

        ``List`` shows nothing lacking in such a pod, and what the kubelet before was answered for
        it is all that it asks for.
        """
        pods = [
            each
            for each in observation.moving
            if each.view is not None
            and not (each.view.terminal or each.view.running)
            and each.pod not in self.admissions.rejected
            and each.view.demand
            and each.view.demand.containers[-1].kind is ContainerKind.INIT
        ]
        found = served_again(ask, pods, self._served_before)
        return replace(found, evidence=Evidence.ORDER) if found and len(pods) > 1 else found

    def _served_before(self, pod: PodId, container: str, resource: Resource) -> bool:
        """Return whether a container holds what no answer to this kubelet gave it."""
        held = self.ledger.holding(ContainerRef(pod, container), resource)
        return held is not None and not held.answered

    def resolve_listed(self, ask: Ask, observation: Observation) -> Resolution:
        """Settle by what the kubelet lists."""
        return resolve(
            ask,
            views=(),
            served=self._served,
            listed=observation.moving,
            history=self.admissions.history(observation.moving),
        )

    def _settle_by_position(self, ask: Ask, views: Sequence[PodView]) -> Resolution:
        """Settle without a witness."""
        try:
            return resolve(ask, views=views, served=self._served, listed=None)
        except ResolutionError:
            # Allocation annotations that others wrote, such as in a manifest copied from a running
            # pod, count for nothing if somebody must be asking and nobody else can be.
            doubted = [replace(each, annotated={}) if each.annotated else each for each in views]
            with suppress(ResolutionError):
                return resolve(ask, views=doubted, served=self._served, listed=None)
            raise

    def _release_gone(self, context: CallContext, named: AbstractSet[tuple[Resource, str]]) -> None:
        """Without a witness, free what the kubelet offers of pods that the API shows no longer.

        It does not offer what such a pod's containers hold until they have ended (K20). Nor does
        one that has restarted offer what its checkpoint shows of a pod to which it has not come
        (K11), or name it for another container than an init container has left it for (K7).

        Args:
            context: what could be seen when the call came in.
            named: places that the call speaks of.
        """
        for pod in self.gone():
            self.ledger.take_back(pod, context.offered | context.named)
        owners = {self.ledger.owners.get(each) for each in context.offered | named}
        for ref in [
            ref
            for pod in owners - self.ledger.known
            if pod is not None
            for ref in self.ledger.pod_refs(pod)
        ]:
            init = self.ledger.kind(ref) is ContainerKind.INIT
            if self.ledger.given_back(ref, context.offered if init else context.offered | named):
                self.ledger.release_container(ref)

    def gone(self) -> list[PodId]:
        """Return the pods that hold places and that the API does not show as live."""
        self.update()
        live = self.pod_index.live
        gone = self.ledger.pods - live  # nearly always nothing, of hundreds
        keys = {pod.key for pod in live} if gone else set()
        return sorted(pod for pod in gone if pod.uid or pod.key not in keys)
