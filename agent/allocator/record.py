"""Who holds what on the node, from three sources (R1). Pure.

- ``List``: what the containers of the pods that it shows hold. What it shows is held, whatever the
  others say. Ordinary init containers are not among them (K4).
- Our own answers to the pod in service, which is the pod that was answered last.
- The kubelet's checkpoint, read before ``List`` is asked. It has a container once that has got all
  it asks for (K28), and counts for ordinary init containers and for pods that ``List`` does not
  show. *Written* means: in the checkpoint.

A pod is *over* where its admission or its life has ended: what is written of it is free, or will be
as soon as the kubelet looks (R2). The rules R1 to R7 are in docs/architecture.md, the facts K1 to
K35 in docs/kubelet-facts.md.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from agent.allocator.identity import Identified, identify
from agent.allocator.in_service import InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef, Containers, Places
from agent.allocator.model.podresources import ListedPod
from agent.allocator.pods import Pods, kubelet_uid
from agent.allocator.recorded_pod import NOT_WRITTEN, RecordedPod, Settled, Shape, all_places
from contract.resource import Resource
from contract.reusable import reusable_ids
from placement.pods import Key, PodId, PodInfo

_NOTHING: frozenset[str] = frozenset()
_NO_PLACES: Places = {}


@dataclass(frozen=True)
class Record:
    """Who holds what, at one moment.

    Attributes:
        unsettled: the pods that are not settled: of these one may be asking.
        listing: whether ``List`` could be had.
        settled: the settled pods.
    """

    unsettled: tuple[RecordedPod, ...] = ()
    listing: bool = False
    settled: Settled = field(default_factory=Settled)

    @property
    def pods(self) -> tuple[RecordedPod, ...]:
        """Every pod that is listed or that something is written of."""
        return self.settled.pods + self.unsettled

    @cached_property
    def listed_unsettled(self) -> Sequence[RecordedPod]:
        """The pods that ``List`` shows and that are not settled."""
        return [each for each in self.unsettled if each.listed is not None]

    @cached_property
    def shapes(self) -> Mapping[Shape, int]:
        """How often ``List`` shows each shape."""
        found = dict(self.settled.shapes)
        for each in self.listed_unsettled:
            found[each.shape] = found.get(each.shape, 0) + 1
        return found

    @cached_property
    def _by_id(self) -> Mapping[PodId, RecordedPod]:
        return {each.id: each for each in self.unsettled}

    def pod(self, pod: PodId) -> RecordedPod | None:
        """Return what is known of a pod."""
        return self._by_id.get(pod) or self.settled.by_id.get(pod)

    def lists(self, key: Key) -> bool:
        """Return whether ``List`` shows a pod of this name."""
        return key in self.settled.keys or any(each.id.key == key for each in self.listed_unsettled)

    def of_uid(self, uid: str) -> RecordedPod | None:
        """Return what is known of a pod by the kubelet's UID."""
        found = self.settled.by_uid.get(uid)
        return found or next((each for each in self.unsettled if each.uid == uid), None)

    def containers(self, pod: PodId) -> Containers:
        """Return what the containers of a pod hold."""
        found = self.pod(pod)
        return {} if found is None else found.held

    def holding(self, ref: ContainerRef, resource: Resource) -> frozenset[str] | None:
        """Return what a container holds of *resource*."""
        return self.containers(ref.pod).get(ref.container, _NO_PLACES).get(resource)

    def find(self, resource: Resource, ids: frozenset[str]) -> list[ContainerRef]:
        """Return the containers that hold exactly *ids*; several where they were handed on (K7)."""
        return [
            ContainerRef(each.id, name)
            for each in self.pods
            for name, places in each.held.items()
            if places.get(resource) == ids
        ]

    @cached_property
    def _held(self) -> Mapping[Resource, frozenset[str]]:
        more = all_places(self.unsettled)
        return {one: self.settled.held[one] | more[one] for one in Resource}

    def held(self, resource: Resource) -> frozenset[str]:
        """Return every place of *resource* that somebody holds."""
        return self._held[resource]

    def taken(self, ref: ContainerRef, resource: Resource, ids: AbstractSet[str]) -> frozenset[str]:
        """Return those of *ids* that are out of reach of a container: another holds them.

        What ordinary init containers of its own pod have left over is within reach (K7).
        """
        taken = set(self.settled.held[resource] & ids)
        for each in self.unsettled:
            has = each.places(resource)
            if each.id == ref.pod:
                has -= self.reusable(each.id, resource)
            taken |= has & ids
        return frozenset(taken - (self.holding(ref, resource) or _NOTHING))

    def reusable(self, pod: PodId, resource: Resource) -> frozenset[str]:
        """Return what the ordinary init containers of a pod have left over (K7)."""
        found = self.pod(pod)
        if found is None:
            return _NOTHING
        return reusable_ids(
            (found.is_init(name), places.get(resource, _NOTHING))
            for name, places in found.held.items()
        )

    def doubtful(self, resource: Resource) -> frozenset[str]:
        """Return what pods hold that are not listed: they may be over, and nobody has told."""
        unlisted = (each for each in self.unsettled if self.listing and each.listed is None)
        return all_places(unlisted)[resource]

    def withheld(
        self, asked: Resource, offered: AbstractSet[str], other: Resource
    ) -> frozenset[str]:
        """Return what the kubelet counts as used of another resource, and nobody holds (R7, K31).

        What a container of a pod that is over had is counted if its places of what is asked for are
        not offered. A container that has none of these goes with its pod. The kubelet frees a pod
        as a whole, but may never have counted a container whose admission it refused (K21).

        Args:
            asked: the resource that is asked for.
            offered: what is offered of it.
            other: the resource of which the places are returned.
        """
        counted: set[str] = set()
        for each in self.unsettled:
            containers = each.outdated.values()
            freed = any(one.get(asked, _NOTHING) & offered for one in containers)
            for one in containers:
                mine = one.get(asked, _NOTHING)
                if not mine & offered and (mine or not freed):
                    counted |= one.get(other, _NOTHING)
        return frozenset(counted - self.held(other))


Offered: TypeAlias = Mapping[Resource, AbstractSet[str]]
"""Places that the kubelet offers to anybody in a preferred call, by resource."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen before, and what a call adds.

    Attributes:
        listed: the kubelet's UIDs of the pods that this kubelet has listed: listed no more, they
            are over. A pod that a restarted kubelet has not listed yet keeps what it has (K11).
        freed: the kubelet's UIDs of pods whose places were offered again: the kubelet freed them.
        confirmed: the kubelet's UIDs of pods that the API showed before and after ``List`` first
            showed their names: no other pod can be meant.
        met: the kubelet's UIDs of the pods that ``List`` has surely shown.
        asker: the pod of the last call, by the kubelet's UID.
        passed: pods that lacked something while another was served: rejected (K1, K8).
        offered: what the kubelet offers: no pod that is not listed holds it.
        synced: whether all pods of the node are known: others have left the API.
    """

    listed: AbstractSet[str] = frozenset()
    freed: AbstractSet[str] = frozenset()
    confirmed: AbstractSet[str] = frozenset()
    met: AbstractSet[str] = frozenset()
    asker: PodId | None = None
    passed: AbstractSet[PodId] = frozenset()
    offered: Offered = field(default_factory=dict)
    synced: bool = True


def read_record(  # noqa: PLR0913 -- the sources
    *,
    written: Checkpoint,
    listed: Sequence[ListedPod] | None,
    services: Sequence[InService],
    pods: Pods,
    seen: Seen,
    settled: Settled | None = None,
) -> Record:
    """Put the three sources together.

    Args:
        written: the kubelet's checkpoint; empty where it cannot be read.
        listed: what ``List`` shows, less the entries of settled pods; ``None`` where it cannot be
            had.
        services: the pod in service, then the one before: the checkpoint may be one container
            old (K33), and then nobody else knows what that was given while there is no ``List``.
        pods: what the API shows of pods.
        seen: what is known besides.
        settled: what :func:`settle` found in these sources.
    """
    return _Reading(written, listed, services, pods, seen).record(settled or Settled())


@dataclass(frozen=True, slots=True)
class _Reading:
    """The arguments of :func:`read_record`."""

    written: Checkpoint
    listed: Sequence[ListedPod] | None
    services: Sequence[InService]
    pods: Pods
    seen: Seen

    def record(self, settled: Settled) -> Record:
        """Put the sources together: listed pods, then what is written of others, then our own."""
        found = [
            self._listed_pod(each)
            for each in identify(
                self.listed or (),
                self.written,
                self.services,
                self.pods,
                used=settled.by_uid.keys(),
                confirmed=self.seen.confirmed,
                met=self.seen.met,
                asker=self.seen.asker,
            )
        ]
        listing = self.listed is not None
        shown = Record(tuple(found), listing, settled)
        there = settled.by_uid.keys() | {each.uid for each in found}
        found += [self._unlisted_pod(uid, shown) for uid in self.written.pods if uid not in there]
        for each in self.services:  # what was rejected half served is counted for a while (K21)
            if not any(each.is_pod(pod.id, pod.uid) for pod in found):
                view = self.pods.by_uid(each.uid)
                over = listing or (view is not None and self._has_ended(view))
                held, outdated = ({}, each.given) if over else (each.given, {})
                found.append(RecordedPod(each.pod, each.uid, view, None, held, outdated, over))
        if not listing:  # who is not served yet can only be known from the API
            there = {each.uid for each in found}
            found += [
                RecordedPod(view.id, kubelet_uid(view), view, None, {})
                for view in self.pods.shown
                if kubelet_uid(view) not in there
            ]
        return Record(tuple(found), listing, settled)

    @property
    def _served(self) -> Sequence[InService]:
        return self.services if self.listed is None else self.services[:1]

    def _given(self, pod: PodId, uid: str) -> Containers:
        return next((each.given for each in self._served if each.is_pod(pod, uid)), {})

    def _listed_pod(self, each: Identified) -> RecordedPod:
        """Return a listed pod with what it holds.

        That is what ``List`` shows, then our answers if it is in service, then what is written of
        containers that ``List`` does not show, unless the kubelet has freed the pod since.
        """
        shown = {one.name: one.held for one in each.entry.containers}
        written = self.written.pods.get(each.uid, NOT_WRITTEN)
        # The file was read before: where List shows something else, the kubelet has freed it (R2).
        freed = any(
            shown[name].get(resource) != ids
            for name, places in written.items()
            if name in shown
            for resource, ids in places.items()
        )
        rest = _added(
            self._given(each.id, each.uid),
            {name: places for name, places in written.items() if freed or name not in shown},
        )
        held: Containers = {name: places for name, places in shown.items() if places}
        pod = RecordedPod(
            each.id,
            each.uid,
            each.view,
            each.entry,
            _added(held, rest),
            sure=each.sure,
            written=written,
        )
        if freed or self._is_rejected(pod, silent=not any(shown.values())):
            return replace(pod, held=held, outdated=rest, over=True)
        return pod

    def _is_rejected(self, pod: RecordedPod, *, silent: bool) -> bool:
        """Return whether a listed pod was rejected or has ended: an old List shows it still (K8).

        That matters only for what its init containers had. One that had nothing may be another of
        its name.
        """
        if not pod.held:
            return False
        if pod.view is None:
            gone = pod.uid in self.seen.freed or _meet(pod.held, self.seen.offered)
            return silent and gone and pod.kubelet_id in self.seen.passed
        return (pod.lacks and pod.kubelet_id in self.seen.passed) or (silent and pod.view.terminal)

    def _unlisted_pod(self, uid: str, shown: Record) -> RecordedPod:
        """Return a pod that something is written of and that ``List`` does not show."""
        view = self.pods.by_uid(uid)
        pod = view.id if view is not None else PodId("", "", uid)
        held = _added(self.written.pods[uid], self._given(pod, uid))
        if self._is_over(PodId(*pod.key, uid), view, held, shown):
            return RecordedPod(pod, uid, view, None, {}, held, over=True)
        return RecordedPod(pod, uid, view, None, held)

    def _is_over(self, me: PodId, view: PodInfo | None, held: Containers, shown: Record) -> bool:
        """Return whether what is written of a pod that ``List`` does not show is free (R2)."""
        # Without List: a pod deleted by force may run on, and its places be offered (K15).
        if self.listed is None:
            return view is not None and view.terminal
        if me.uid in self.seen.listed or me.uid in self.seen.freed:
            return True
        if self._has_ended(view) if view is not None else self.seen.synced:
            return True
        others = {each: shown.held(each) for each in Resource}
        # What the last asker's init containers had is offered to it (K7).
        handed_on = _meet(held, others) or _meet(held, self.seen.offered)
        return handed_on and me != self.seen.asker

    def _has_ended(self, view: PodInfo) -> bool:
        return view.terminal or not self.pods.is_shown(kubelet_uid(view))


def _added(held: Containers, more: Containers) -> Containers:
    """Return what containers hold by two sources; the first counts where both tell."""
    found = dict(held)
    for name, places in more.items():
        found[name] = {**places, **found.get(name, _NO_PLACES)}
    return found


def _meet(held: Containers, places: Offered) -> bool:
    """Return whether a container holds any of these places."""
    return any(
        not ids.isdisjoint(places.get(resource, _NOTHING))
        for each in held.values()
        for resource, ids in each.items()
    )
