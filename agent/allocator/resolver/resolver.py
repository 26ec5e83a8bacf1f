"""Who is there, and who of them is asking: the kubelet, the API and the book seen together.

Keeps what follows from one call to the next: who is at rest, and who has had its turn. The
lock is its owner's; where it says "lock held" the caller holds it. The kubelet and the API
are asked without it.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from agent.allocator.model.grant import check_free
from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import Key, PodId, PodView
from agent.allocator.model.podresources import MatchedPod, Snapshot
from agent.allocator.model.ports import DecisionLog, PodSource, RecordSource
from agent.allocator.resolver.admissions import Admissions
from agent.allocator.resolver.pod_index import Observation, PodIndex
from agent.allocator.resolver.pod_lookup import PodReader
from agent.allocator.resolver.resolve import (
    Ask,
    Resolution,
    is_recorded,
    lacks,
    next_containers,
    resolve,
    served_again,
    waits,
)
from agent.allocator.resolver.unseen_inits import asking_unseen, is_unseen, keep_unseen, name_unseen
from agent.errors import GrantError, ResolutionError, Unavailable
from contract.allocation import Evidence
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of

_MOST_FETCHES = 6

WITNESS_WITHIN = 1.0
"""Seconds a preferred call or ``Allocate`` waits for the kubelet's record."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What could be seen when a call came in.

    Attributes:
        snapshot: the kubelet's record; ``None`` when it could not be had.
        offered: held places that the kubelet offers for anybody in this call.
        named: places that it has chosen itself.
    """

    snapshot: Snapshot | None
    offered: AbstractSet[tuple[Resource, str]] = frozenset()
    named: AbstractSet[tuple[Resource, str]] = frozenset()


class Resolver:
    """Sees who stands at the allocator."""

    def __init__(  # noqa: PLR0913 -- its owner's collaborators, by keyword
        self,
        *,
        ledger: Ledger,
        pod_index: PodIndex,
        pods: PodSource,
        record: RecordSource,
        decision_log: DecisionLog,
        lock: threading.Lock,
        reader: PodReader | None = None,
    ) -> None:
        """Know nobody.

        Args:
            ledger: who holds what.
            pod_index: tells pods at rest from pods in motion; knows nobody yet.
            pods: the pods of this node.
            record: the kubelet's own record.
            decision_log: takes corrections, and that the record could not be had.
            lock: guards the ledger and this.
            reader: reads single pods of *pods*.
        """
        self.ledger = ledger
        self.pod_index = pod_index
        self._pods = pods
        self._record = record
        self._decision_log = decision_log
        self._lock = lock
        self._changed: set[PodId] = set()
        self._reader = reader or PodReader(pods)
        self.admissions = Admissions()
        self._last: ContainerRef | None = None  # the container answered last
        # Pods that were found to be asking while another of their name was listed as well.
        self._told_apart: set[PodId] = set()

    def update(self) -> PodIndex:
        """Apply what the API has told; lock held."""
        if self.pod_index.update(self._pods.views()):
            self._adopt_names()
        return self.pod_index

    def _adopt_names(self) -> None:
        """Return their UIDs to pods that were booked by their names while the API was away.

        A pod that asks for something else than was booked is another one of the same name. If
        the kubelet has not shown the booked one holding that either, it was guessed wrongly.
        """
        pods = {
            each.pod
            for each, _, _ in self.ledger.refs()
            if not each.pod.uid or is_unseen(each.container)
        }
        for pod in pods:
            view = self.pod_index.view(pod)
            if view is not None:
                name_unseen(self.ledger, view)
            if pod.uid:
                continue
            views = [each for each in self.pod_index.views_of(pod.key) if not each.terminal]
            fitting = {each.id for each in views if self._fits(each, pod)}
            if len(fitting) == 1:
                self.ledger.adopt_names(fitting)
            elif views and not fitting:
                self.ledger.release_unproven(pod)

    def _fits(self, view: PodView, booked: PodId) -> bool:
        """Return whether *view* asks for what is booked by its name alone."""
        for ref in self.ledger.pod_refs(booked):
            if is_unseen(ref.container):
                continue
            container = view.demand.of(ref.container)
            for resource in Resource:
                held = self.ledger.holding(ref, resource)
                if held is None:
                    continue
                if container is None or count_of(container.demand, resource) != len(held.ids):
                    return False
        return True

    # --- looking ---------------------------------------------------------------------

    def look(
        self,
        offered: AbstractSet[tuple[Resource, str]] = frozenset(),
        *,
        named: AbstractSet[tuple[Resource, str]] = frozenset(),
        ask: Ask | None = None,
    ) -> CallContext:
        """Ask the kubelet, then the API for the few pods it shows that we do not know enough of.

        Args:
            offered: held places that the kubelet offers for anybody in this call.
            named: places that it has chosen itself.
            ask: what somebody asks for, who has to be found; ``None`` if nobody does.
        """
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable as error:
            self._decision_log.podresources_unavailable(str(error))
            return CallContext(None, offered, named)
        deadline = self._reader.deadline(WITNESS_WITHIN)
        # A pod that has left the API is read anew each time: its name may have come back.
        steps: list[tuple[Callable[[Snapshot], list[Key]], bool]] = [(self._unknown, False)]
        if ask is not None:
            unexplained = partial(self._unexplained, ask)
            steps.insert(0, (self._returned, True))
            steps += [(self._uncertain, True), (self._doubtful, True), (unexplained, True)]
        read: set[Key] = set()
        for step, again in steps:
            with self._lock:
                names = [each for each in step(snapshot) if each not in read][:_MOST_FETCHES]
            read.update(names)
            missing = self._reader.read(names, deadline=deadline, again=again)
            if missing is None:
                break  # List alone is enough to go on; the watch catches up later
            with self._lock:
                self.pod_index.alone(missing, snapshot)
        return CallContext(snapshot, offered, named)

    def look_again(self, context: CallContext, ask: Ask) -> None:
        """Read once more who may be meant, before a call is refused that nobody can be making.

        Args:
            context: what could be seen when the call came in.
            ask: what the call asks for.
        """
        if context.snapshot is not None:
            deadline = self._reader.deadline(WITNESS_WITHIN)
            with self._lock:
                names = self._meant(context.snapshot, ask, again=True)
            missing = self._reader.read(names, deadline=deadline, again=True)
            with self._lock:
                self.pod_index.alone(missing or (), context.snapshot)
        # The watch may not have told of the pod yet.
        self._reader.refresh(within=WITNESS_WITHIN)

    def _observe(self, snapshot: Snapshot) -> Observation:
        """See which pod each listed entry is; lock held."""
        self.update()
        self.pod_index.invalidate(self.ledger.take_changed())
        observation = self.pod_index.observe(snapshot, self.ledger.owners)
        confused = self._confused(observation)
        if confused is None:
            return observation
        self.ledger.hand_over(*confused)
        self.pod_index.invalidate({*confused, *self.ledger.take_changed()})
        return self.pod_index.observe(snapshot, self.ledger.owners)

    def _confused(self, observation: Observation) -> tuple[PodId, PodId] | None:
        """Find a pod to which was booked what its predecessor of the same name had been given.

        ``List`` tells no UID: a pod that is admitted after it has left the API is taken for the
        one that has its name by then. Once that one is listed as well, there are two entries, and
        the one with the places is the older pod's.
        """
        doubted = [each for each in observation.moving if not each.certain]
        self._told_apart &= observation.pods
        for older in doubted:
            for newer in observation.moving:
                if (
                    newer.listed.key == older.listed.key
                    and newer.pod != older.pod
                    and newer.pod not in self._told_apart
                    and newer.view is not None
                    and older.view is not None
                    and not self.pod_index.has_departed(newer.pod)
                    and older.view.position < newer.view.position
                    and any(newer.listed.each_held())
                    and not any(older.listed.each_held())
                    and newer.listed.may_be(older.view)
                    and not self.ledger.pod_refs(older.pod)
                ):
                    return newer.pod, older.pod
        return None

    def _unknown(self, snapshot: Snapshot) -> list[Key]:
        """List the listed pods of which the API has told nothing, newcomers first."""
        observation = self._observe(snapshot)
        fresh = {pod.key for pod in self.admissions.newcomers(observation.moving)}
        return sorted(self.pod_index.unknown(observation), key=lambda key: (key not in fresh, key))

    def _returned(self, snapshot: Snapshot) -> list[Key]:
        """List the pods of which the API has told nothing, only of another of the same name.

        The watch may be behind, and what was read a moment ago was read of the other.
        """
        observation = self._observe(snapshot)
        strangers = {
            each.listed.key
            for each in observation.moving
            if each.view is None
            and not all(box.held.get(one) for box in each.listed.containers for one in Resource)
        }
        return sorted(key for key in strangers if self.pod_index.views_of(key))

    def _uncertain(self, snapshot: Snapshot) -> list[Key]:
        """List the pods that have left the API and lack something: another may have the name."""
        moving = self._observe(snapshot).moving
        return sorted({each.listed.key for each in moving if not each.certain and lacks(each)})

    def _doubtful(self, snapshot: Snapshot) -> list[Key]:
        """List the pods that may not be what the API has told of them, newest first.

        Only one pod can be waiting (fact K3). Where ``List`` keeps rejected ones (K8) there may
        be more, for as long as the API has not told how they ended. And a pod that was served
        and shows nothing of it has been replaced by another of the same name.
        """
        observation = self._observe(snapshot)
        waiting = sorted(
            (each.view.position, each.pod, self._was_served(each))
            for each in observation.moving
            if each.view is not None
            and each.pod not in self.admissions.passed
            and lacks(each)
            and not any(each.listed.each_held())
        )
        replaced = [pod.key for _, pod, served in waiting if served]
        others = [pod.key for _, pod, _ in reversed(waiting)] if len(waiting) > 1 else []
        return list(dict.fromkeys(replaced + others))

    def _unexplained(self, ask: Ask, snapshot: Snapshot) -> list[Key]:
        """List the pods that may be meant, where nobody who is still to be served asks for this.

        A pod that the kubelet has just begun to list is asking (K1, K3). If by what the API has
        told it cannot be, its name may have come back with other sizes. One that holds
        something and lacks the rest may have been rejected before a newer pod was listed (K21).
        """
        observation = self._observe(snapshot)
        try:
            found = self._resolve(ask, observation)
        except ResolutionError:
            return self._meant(snapshot, ask)
        if found.rivals:
            return [found.pod.key, *(each.pod.key for each in found.rivals)]
        fresh = self.admissions.newcomers(observation.moving)
        lacking = {each.pod for each in observation.moving if each.view is None or lacks(each)}
        if found.pod in self.admissions.passed or (fresh & lacking and found.pod not in fresh):
            return self._meant(snapshot, ask)
        return []

    def _meant(self, snapshot: Snapshot, ask: Ask, *, again: bool = False) -> list[Key]:
        """List the listed pods that may be asking by another spec than is known, likeliest first.

        Names of ended pods come back; then those that the kubelet has begun to list since the
        last call, those that lack something, and those that hold nothing.
        """
        observation = self._observe(snapshot)
        fresh = self.admissions.newcomers(observation.moving)
        moving = [each for each in observation.moving if ask.owner in (None, each.pod)]
        ranked = sorted(
            (
                (
                    each.pod not in fresh,
                    each.pod in self.admissions.passed,
                    any(each.listed.each_held()),
                    each.listed.key,
                )
                for each in moving
                if each.view is None or not each.view.terminal
            ),
        )
        newest = [key for old, *_, key in ranked if not old]
        others = [key for old, *_, key in ranked if old]
        ended = self.pod_index.ended(observation, again=again)
        return list(dict.fromkeys([*newest, *ended, *others, *self.pod_index.silent()]))[
            :_MOST_FETCHES
        ]

    def _was_served(self, each: MatchedPod) -> bool:
        """Return whether a listed pod had everything, by its own record or the kubelet's before."""
        if each.view is not None and is_recorded(each.view):
            return True
        return any(
            held is not None and held.proven
            for ref in self.ledger.pod_refs(each.pod)
            for held in (self.ledger.holding(ref, resource) for resource in Resource)
        )

    def reconcile(
        self,
        snapshot: Snapshot,
        *,
        offered: AbstractSet[tuple[Resource, str]] = frozenset(),
        named: AbstractSet[tuple[Resource, str]] = frozenset(),
    ) -> Observation:
        """Bring the book in line with the kubelet's record; lock held."""
        observation = self._observe(snapshot)
        admissions = self.admissions
        admissions.shown(observation.pods, self.pod_index.live)
        for each in observation.moving:
            self._take_over(each)
            if each.view is None and each.pod in admissions.begun:
                keep_unseen(self.ledger, each, offered)
        ended = {each.pod for each in observation.moving if each.view and each.view.terminal}
        begun = [
            each.pod
            for each in observation.moving
            if each.pod in admissions.begun or self.pod_index.has_departed(each.pod)
        ]
        booked = {pod: self._sure(pod) for pod in begun}
        admissions.gained(each.pod for each in observation.moving if self._gained(each))
        for correction in self.ledger.reconcile(
            observation.moving,
            resting=observation.resting,
            finished=admissions.passed | ended,
            live=self.pod_index.live,
            offered=offered,
            named=named,
        ):
            self._decision_log.corrected(correction)
            admissions.guessed_wrongly(correction.guessed.pod)
        # What was answered to this kubelet and is gone from its record: the pod was rejected (K8).
        over = [pod for pod, sure in booked.items() if sure - self._sure(pod)]
        admissions.over(over)
        for pod in over:
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
        """Return the pods whose bookings the kubelet's record has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _gained(self, each: MatchedPod) -> bool:
        """Return whether the record shows a pod holding what was not answered for it."""
        return any(
            ids and ((held := self.ledger.holding(ref, resource)) is None or held.ids != ids)
            for container in each.listed.containers
            for ref in (ContainerRef(each.pod, container.name),)
            for resource, ids in container.held.items()
        )

    def _sure(self, pod: PodId) -> set[ContainerRef]:
        """Return the containers of *pod* that are not guesses, ordinary init ones left out."""
        return {
            ref
            for ref in self.ledger.pod_refs(pod)
            if self.ledger.kind(ref) is not ContainerKind.INIT
            and all(
                held is None or held.evidence is not Evidence.ORDER
                for held in (self.ledger.holding(ref, resource) for resource in Resource)
            )
        }

    def rejected(self, ref: ContainerRef | None, *, certain: bool = True) -> None:
        """Record that the kubelet will not try a pod again: a call made for it is being refused.

        Args:
            ref: the container, if it could be told.
            certain: whether it is known that it was asking, not only guessed.
        """
        if ref is not None:
            with self._lock:
                self.admissions.refuse(ref.pod, certain=certain)

    def answered(self, ref: ContainerRef) -> None:
        """Record that a call for *ref* is being answered; lock held."""
        self.admissions.answer(ref.pod)
        self._last = ref

    def forget_kubelet(self) -> None:
        """Record that a kubelet has come anew: it tries every pod again; lock held."""
        self.admissions.forget()
        self._last = None

    # --- resolving -------------------------------------------------------------------

    def _served(self, pod: PodId, container: str, resource: Resource) -> bool:
        return self.ledger.holding(ContainerRef(pod, container), resource) is not None

    def ask(self, resource: Resource, size: int, named: Iterable[str]) -> Ask:
        """Return what a call reveals about who is asking; lock held.

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
        """Settle who is asking; lock held.

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
            self._release_gone(context)
        else:
            guess = self._guess()
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
        if resolution.pod not in self.admissions.newcomers(moving):
            self._transfer(guess, resolution)
        if sum(each.listed.key == resolution.pod.key for each in moving) > 1:
            self._told_apart.add(resolution.pod)
        passed = self.admissions.passed
        self.admissions.settle(resolution.pod, observation, context.snapshot)
        rejected = self.admissions.passed - passed
        if (
            context.snapshot is not None
            and resolution.evidence is Evidence.WITNESS
            and any(self.ledger.pod_refs(each) for each in rejected)
        ):  # what these were answered is free
            self.reconcile(context.snapshot, offered=context.offered, named=context.named)
        return resolution

    def _guess(self) -> dict[Resource, Holding]:
        """Return what was answered last for a container that was guessed, and is not proven."""
        last = self._last
        if last is None or last not in self.ledger.pod_refs(last.pod):
            return {}
        if self.ledger.kind(last) is ContainerKind.INIT:
            return {}
        found = {resource: self.ledger.holding(last, resource) for resource in Resource}
        return {
            resource: held
            for resource, held in found.items()
            if held is not None and held.evidence is Evidence.ORDER and not held.proven
        }

    def _disproved(self, guess: Mapping[Resource, Holding]) -> dict[Resource, Holding]:
        """Return what of a guess the record shows with nobody: an init container has it (K4)."""
        last = self._last
        if last is None:
            return {}
        found = {
            resource: held
            for resource, held in guess.items()
            if self.ledger.holding(last, resource) is None
            and not any((resource, each) in self.ledger.owners for each in held.ids)
        }
        if found:
            self.admissions.disproved(last.pod)
        return found

    def _transfer(self, guess: Mapping[Resource, Holding], resolution: Resolution) -> None:
        """Book to the init container that is asking what was guessed to be another's."""
        container = resolution.container
        if container.kind is not ContainerKind.INIT:
            return
        ref = ContainerRef(resolution.pod, container.name)
        for resource, held in guess.items():
            if (
                count_of(container.demand, resource) == len(held.ids)
                and self.ledger.holding(ref, resource) is None
            ):
                self.ledger.record(ref, container.kind, resource, held)

    def _take_over(self, each: MatchedPod) -> None:
        """Book to a pod what its init container was given last in the name of one before it.

        The API had not told yet that the name had come back.
        """
        view, last = each.view, self._last
        if view is None or last is None or last.pod not in {old.id for old in each.earlier}:
            return
        container = view.demand.of(last.container)
        held = {resource: self.ledger.holding(last, resource) for resource in Resource}
        if (
            container is not None
            and container.kind is ContainerKind.INIT
            and all(
                one is None or len(one.ids) == count_of(container.demand, resource)
                for resource, one in held.items()
            )
        ):
            self.ledger.release_container(last)
            for resource, one in held.items():
                if one is not None:
                    own = ContainerRef(each.pod, last.container)
                    self.ledger.record(own, container.kind, resource, one)

    def _settle(self, ask: Ask, observation: Observation | None) -> Resolution:
        views = self._pods.views()
        if observation is None:
            return self._repair(ask, views) or self._settle_by_line(ask, views)
        try:
            return self._resolve(ask, observation)
        except ResolutionError:
            waiting = [
                each
                for each in observation.moving
                if each.pod not in self.admissions.passed and waits(each, self._served)
            ]
            resolution = served_again(ask, waiting, self._served)
            if resolution is not None:
                return resolution
            if waiting:  # it is one of those (fact K3)
                raise
            # A kubelet that does not list the pod it is admitting is no witness of it.
            shown = observation.pods
            others = [each for each in views if each.id not in shown and not each.terminal]
            with suppress(ResolutionError):
                resolution = self._settle_by_line(ask, others)
            if resolution is None:
                raise
        self._decision_log.podresources_unavailable(
            "PodResources: List does not show the pod that is being admitted"
        )
        return resolution

    def _resolve(self, ask: Ask, observation: Observation) -> Resolution:
        """Settle by what the kubelet lists."""
        return resolve(
            ask,
            views=(),
            served=self._served,
            listed=observation.moving,
            past=self.admissions.past(observation.moving),
        )

    def _repair(self, ask: Ask, views: Sequence[PodView]) -> Resolution | None:
        """Without a witness, see whether the call before this was settled for the right container.

        A container's two resources are asked for one after the other (fact K1): if the one that
        was guessed cannot be asking this, another was meant that asks for both.

        Returns:
            That other one; ``None`` if the guess may stand.
        """
        last, view = self._last, self.pod_index.view(self._last.pod) if self._last else None
        container = view.demand.of(last.container) if last and view else None
        if last is None or container is None:
            return None
        held = self.ledger.holding(last, ask.resource.other)
        if held is None or self.ledger.holding(last, ask.resource) is not None:
            return None
        if count_of(container.demand, ask.resource) in (0, ask.size):
            return None  # it is asking, or has all it asks for
        shared = (
            self.ledger.holding(each, ask.resource.other)
            for each in self.ledger.pod_refs(last.pod)
            if each != last
        )
        if any(each is not None and not each.ids.isdisjoint(held.ids) for each in shared):
            return None  # handed on by an init container: nobody else can hold these (K7)
        both = {ask.resource: ask.size, ask.resource.other: len(held.ids)}
        meant = [
            (each.position, each.id, other)
            for each in views
            if not each.terminal
            for other in self._next_of(each)
            if all(count_of(other.demand, resource) == both[resource] for resource in Resource)
            and not any(self._served(each.id, other.name, resource) for resource in Resource)
        ]
        if not meant:
            return None
        _, pod, other = min(meant, key=lambda each: each[:2])
        ref = ContainerRef(pod, other.name)
        self.ledger.release(last, ask.resource.other)
        self.ledger.record(ref, other.kind, ask.resource.other, held)
        self._decision_log.corrected(Correction(ask.resource.other, held.ids, last, ref))
        return Resolution(pod, other, Evidence.ORDER)

    def _next_of(self, view: PodView) -> list[ContainerDemand]:
        """Return the containers of a pod that may come next by the agent's own record."""

        def is_served(container: ContainerDemand, resource: Resource) -> bool:
            return self._served(view.id, container.name, resource)

        return next_containers(view.demand.containers, is_served)

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

    def _release_gone(self, context: CallContext) -> None:
        """Without a witness, free what the kubelet offers of pods that the API shows no longer.

        It does not offer what such a pod's containers hold until they have ended (K20).
        """
        for pod in self.gone():
            self.ledger.take_back(pod, context.offered | context.named)

    def gone(self) -> list[PodId]:
        """Return the pods that hold places and that the API does not show as live; lock held."""
        self.update()
        live = self.pod_index.live
        keys = {pod.key for pod in live}
        holders = {ref.pod for ref, _, _ in self.ledger.refs()}
        return sorted(
            pod for pod in holders if ((pod not in live) if pod.uid else (pod.key not in keys))
        )
