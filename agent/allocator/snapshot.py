"""Who holds what on the node, at one moment, from three sources (R1). Pure.

- ``List``: what the containers of the pods that it shows hold. What it shows is held, whatever the
  others say. Ordinary init containers are not among them (K4).
- Our own assignments to the current pod, which is the pod that was served last.
- The kubelet's checkpoint, read before ``List`` is asked. It has a container once that has got all
  it asks for (K28), and counts for ordinary init containers and for pods that ``List`` does not
  show.

A pod has *ended* where its admission or its life has: its checkpoint entries are stale, and their
slots are free, or will be as soon as the kubelet looks (R2). The rules R1 to R7 are in
docs/architecture.md, the facts K1 to K35 in docs/kubelet-facts.md.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agent.allocator.current_pod import CurrentPod
from agent.allocator.identity import Identified, KnownPods, identify, kubelet_uid
from agent.allocator.interfaces import Checkpoint, ContainerRef, Containers, ListedPod
from agent.allocator.model.pod_view import Key, PodId, PodView
from agent.allocator.snapshot_pod import (
    NO_SLOTS,
    NOT_CHECKPOINTED,
    NOTHING,
    Signature,
    SnapshotPod,
    StablePods,
    all_slots,
)
from contract.resource import RESOURCES, Resource

Offered: TypeAlias = Mapping[Resource, AbstractSet[str]]
"""Slots that the kubelet offers to any container in a preferred call, by resource."""


@dataclass(frozen=True)
class AllocationSnapshot:
    """Who holds what, at one moment.

    Attributes:
        changing: the pods that are not stable: of these one may be the target of a call.
        listing: whether ``List`` could be had.
        stable: the stable pods.
        known: the node's pods as the API shows them.
        listed_changing: the pods of *changing* that ``List`` shows.
        signatures: how often ``List`` shows each signature.
        held: every slot that a container holds.
    """

    changing: tuple[SnapshotPod, ...] = ()
    listing: bool = False
    stable: StablePods = field(default_factory=StablePods)
    known: KnownPods = field(default_factory=KnownPods)
    listed_changing: tuple[SnapshotPod, ...] = field(init=False, compare=False)
    signatures: Mapping[Signature, int] = field(init=False, compare=False)
    held: Mapping[Resource, frozenset[str]] = field(init=False, compare=False)
    _by_id: Mapping[PodId, SnapshotPod] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Work out what every call asks for."""
        listed = tuple([each for each in self.changing if each.listed is not None])
        signatures = dict(self.stable.signatures)
        for each in listed:
            signatures[each.signature] = signatures.get(each.signature, 0) + 1
        more = all_slots(self.changing)
        found = {
            "listed_changing": listed,
            "signatures": signatures,
            "held": {one: self.stable.held[one] | more[one] for one in RESOURCES},
            "_by_id": {each.id: each for each in self.changing},
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def pods(self) -> tuple[SnapshotPod, ...]:
        """Every pod that is listed or that something is checkpointed of."""
        return (*self.stable.pods, *self.changing)

    def pod(self, pod: PodId) -> SnapshotPod | None:
        """Return what is known of a pod."""
        return self._by_id.get(pod) or self.stable.by_id.get(pod)

    def lists(self, key: Key) -> bool:
        """Return whether ``List`` shows a pod of this name."""
        return key in self.stable.by_key or any(each.id.key == key for each in self.listed_changing)

    def of_uid(self, uid: str) -> SnapshotPod | None:
        """Return what is known of a pod by the kubelet's UID."""
        found = self.stable.by_uid.get(uid)
        return found or next((each for each in self.changing if each.uid == uid), None)

    def containers(self, pod: PodId) -> Containers:
        """Return what the containers of a pod hold."""
        found = self.pod(pod)
        return {} if found is None else found.held

    def holding(self, ref: ContainerRef, resource: Resource) -> frozenset[str] | None:
        """Return what a container holds of *resource*."""
        return self.containers(ref.pod).get(ref.container, NO_SLOTS).get(resource)

    def find(self, resource: Resource, ids: frozenset[str]) -> list[ContainerRef]:
        """Return the containers that hold exactly *ids*; several where they were handed on (K7)."""
        return [
            ContainerRef(each.id, name)
            for each in (self.pods if ids <= self.stable.held[resource] else self.changing)
            for name, slots in each.held.items()
            if slots.get(resource) == ids
        ]

    def taken(self, ref: ContainerRef, resource: Resource, ids: AbstractSet[str]) -> frozenset[str]:
        """Return those of *ids* that are out of reach of a container: another holds them.

        What ordinary init containers of its own pod have left over is within reach (K7).
        """
        taken = set(self.stable.held[resource] & ids)
        for each in self.changing:
            has = each.slots(resource)
            if each.id == ref.pod:
                has -= each.reusable(resource)
            taken |= has & ids
        return frozenset(taken - (self.holding(ref, resource) or NOTHING))

    def reusable(self, pod: PodId, resource: Resource) -> frozenset[str]:
        """Return what the ordinary init containers of a pod have left over (K7)."""
        found = self.pod(pod)
        return NOTHING if found is None else found.reusable(resource)

    def uncertain(self, resource: Resource) -> frozenset[str]:
        """Return the slots of unlisted pods, which may have ended without our knowing."""
        unlisted = (each for each in self.changing if self.listing and each.listed is None)
        return all_slots(unlisted)[resource]

    def withheld(
        self, asked: Resource, offered: AbstractSet[str], other: Resource
    ) -> frozenset[str]:
        """Return what the kubelet counts as used of another resource, and no pod holds (R7, K31).

        What a container of an ended pod had is counted if its slots of what is asked for are not
        offered. A container that has none of these goes with its pod. The kubelet frees a pod as a
        whole, but may never have counted a container whose admission it rejected (K21).

        Args:
            asked: the resource that is asked for.
            offered: what is offered of it.
            other: the resource of which the slots are returned.
        """
        counted: set[str] = set()
        for each in self.changing:
            containers = each.stale.values()
            freed = any(one.get(asked, NOTHING) & offered for one in containers)
            for one in containers:
                mine = one.get(asked, NOTHING)
                if not mine & offered and (mine or not freed):
                    counted |= one.get(other, NOTHING)
        return frozenset(counted - self.held[other])

    def with_confirmed(self, uids: AbstractSet[str]) -> "AllocationSnapshot":
        """Return this after the API has confirmed pods, by the kubelet's UIDs."""
        if not any(each.uid in uids and each.sure != each.sole for each in self.changing):
            return self
        pods = (
            replace(each, sure=each.sole) if each.uid in uids else each for each in self.changing
        )
        return replace(self, changing=tuple(pods))


@dataclass(frozen=True, slots=True)
class KubeletHistory:
    """What one instance of the kubelet has shown of its pods so far (R2).

    Pods go by the kubelet's UIDs. Another instance has shown nothing yet: it gets a history of its
    own. Never changed: :meth:`updated` returns another one.

    Attributes:
        listed: pods that ``List`` has shown: listed no more, they have ended. A pod that a
            restarted kubelet has not listed yet keeps what it has (K11).
        met: of these, those that surely were the pod of their name that was shown.
        freed: pods that have ended, and whose slots the kubelet has offered since: it freed them.
        ended: pods that had ended, and held nothing, when ``List`` was last seen; by their names,
            too, for the UID of one may not be known. While ``List`` is unavailable they still have.
    """

    listed: frozenset[str] = frozenset()
    met: frozenset[str] = frozenset()
    freed: frozenset[str] = frozenset()
    ended: frozenset[PodId] = frozenset()

    def updated(self, snapshot: AllocationSnapshot, *, offered: bool) -> "KubeletHistory":
        """Return this with what a look has shown; *offered*: the kubelet offered something."""
        stable = snapshot.stable.by_uid.keys()
        listed, met = set(stable - self.listed), set(stable - self.met)
        held, freed = set(stable & self.freed), set[str]()
        for each in snapshot.changing:
            if each.listed is not None and each.sure:
                met.add(each.uid)
            if each.listed is not None and each.uid:
                listed.add(each.uid)
                if not each.ended:
                    held.add(each.uid)
                elif offered and each.info is None:
                    freed.add(each.uid)
            elif each.ended and offered:
                freed.add(each.uid)
        return replace(
            self,
            listed=self.listed | listed,
            met=self.met | met,
            freed=self.freed - held | freed,
        )

    def with_ended(self, snapshot: AllocationSnapshot) -> "KubeletHistory":
        """Return this with the pods that have ended by a snapshot, if ``List`` is part of it."""
        if not snapshot.listing:
            return self
        ended = (each.kubelet_id for each in snapshot.changing if each.ended and not each.held)
        return replace(self, ended=frozenset(ended))


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """What was seen before, and what a call adds.

    Attributes:
        history: what this kubelet has shown so far.
        confirmed: the kubelet's UIDs of pods that the API showed before and after ``List`` first
            showed their names: no other pod can be meant.
        target: the pod of the last call, by the kubelet's UID.
        finished: pods that lacked something while another was served: rejected (K1, K8).
        offered: what the kubelet offers: no pod that is not listed holds it.
        synced: whether all pods of the node are known: others have left the API.
    """

    history: KubeletHistory = field(default_factory=KubeletHistory)
    confirmed: AbstractSet[str] = frozenset()
    target: PodId | None = None
    finished: AbstractSet[PodId] = frozenset()
    offered: Offered = field(default_factory=dict)
    synced: bool = True


def build_snapshot(  # noqa: PLR0913 -- the sources
    *,
    checkpoint: Checkpoint,
    listed: Sequence[ListedPod] | None,
    served: Sequence[CurrentPod],
    known: KnownPods,
    context: SnapshotContext,
    stable: StablePods | None = None,
) -> AllocationSnapshot:
    """Put the three sources together.

    Args:
        checkpoint: the kubelet's checkpoint; empty where it cannot be read.
        listed: what ``List`` shows; ``None`` where it cannot be had.
        served: the current pod, then the one before: the checkpoint may be one container old
            (K33), and then nobody else knows what that was given while there is no ``List``.
        known: what the API shows of pods.
        context: what is known besides.
        stable: what :func:`agent.allocator.snapshot_pod.find_stable` found in these sources.
    """
    return _SnapshotBuilder(checkpoint, listed, served, known, context).build(
        stable or StablePods()
    )


@dataclass(frozen=True, slots=True)
class _SnapshotBuilder:
    """The arguments of :func:`build_snapshot`."""

    checkpoint: Checkpoint
    listed: Sequence[ListedPod] | None
    served: Sequence[CurrentPod]
    known: KnownPods
    context: SnapshotContext

    def build(self, stable: StablePods) -> AllocationSnapshot:
        """Put the sources together: listed pods, then other checkpoint entries, then our own."""
        listing, context = self.listed is not None, self.context
        found = [
            self._listed_pod(each)
            for each in identify(
                [each for each in self.listed or () if each.key not in stable.by_key],
                self.checkpoint,
                self.served,
                self.known,
                used=stable.by_uid.keys(),
                confirmed=context.confirmed,
                met=context.history.met,
                target=context.target,
            )
        ]
        there = stable.by_uid.keys() | {each.uid for each in found}
        unlisted = [uid for uid in self.checkpoint.pods if uid not in there]
        if unlisted:
            shown = AllocationSnapshot(tuple(found), listing, stable).held
            found += [self._unlisted_pod(uid, shown) for uid in unlisted]
        gone = context.history.ended | context.finished
        for each in self.served:  # what was rejected half served is counted for a while (K21)
            if not any(each.is_pod(pod.id, pod.uid) for pod in found):
                info = self.known.by_uid(each.uid)
                ended = (
                    listing
                    or PodId(*each.id.key, each.uid) in gone
                    or (info is not None and self.known.has_ended(info))
                )
                held, stale = ({}, each.allocated) if ended else (each.allocated, {})
                found.append(SnapshotPod(each.id, each.uid, info, None, held, stale, ended))
        if not listing:  # who is not served yet can only be known from the API
            there = {each.uid for each in found}
            found += [
                SnapshotPod(info.id, kubelet_uid(info), info, None, {})
                for info in self.known.shown
                if kubelet_uid(info) not in there
            ]
        return AllocationSnapshot(tuple(found), listing, stable, self.known)

    def _allocated(self, pod: PodId, uid: str) -> Containers:
        served = self.served if self.listed is None else self.served[:1]
        return next((each.allocated for each in served if each.is_pod(pod, uid)), {})

    def _listed_pod(self, each: Identified) -> SnapshotPod:
        """Return a listed pod with what it holds.

        That is what ``List`` shows, then our assignments if it is the current pod, then what the
        checkpoint has of containers that ``List`` does not show, unless the kubelet has freed the
        pod since.
        """
        shown = {one.name: one.held for one in each.entry.containers}
        checkpointed = self.checkpoint.pods.get(each.uid, NOT_CHECKPOINTED)
        # The file was read before: where List shows something else, the kubelet has freed it (R2).
        freed = any(
            shown[name].get(resource) != ids
            for name, slots in checkpointed.items()
            if name in shown
            for resource, ids in slots.items()
        )
        rest = _merged(
            self._allocated(each.id, each.uid),
            {name: slots for name, slots in checkpointed.items() if freed or name not in shown},
        )
        listed_only: Containers = {name: slots for name, slots in shown.items() if slots}
        held = _merged(listed_only, rest)
        ended = freed or self._is_rejected(each, held, silent=not any(shown.values()))
        return SnapshotPod(
            each.id,
            each.uid,
            each.info,
            each.entry,
            listed_only if ended else held,
            rest if ended else {},
            ended,
            each.sure,
            each.sole,
            checkpointed,
        )

    def _is_rejected(self, each: Identified, held: Containers, *, silent: bool) -> bool:
        """Return whether a listed pod was rejected or has ended: an old List shows it still (K8).

        That matters only for what its init containers had. One that had nothing may be another of
        its name.
        """
        if not held:
            return False
        finished = PodId(*each.id.key, each.uid) in self.context.finished
        if each.info is None:
            freed = each.uid in self.context.history.freed
            return silent and finished and (freed or _meet(held, self.context.offered))
        return (silent and each.info.terminal) or (
            finished and SnapshotPod(each.id, each.uid, each.info, each.entry, held).lacks
        )

    def _unlisted_pod(self, uid: str, shown: Offered) -> SnapshotPod:
        """Return a pod that the checkpoint has and that ``List`` does not show."""
        info = self.known.by_uid(uid)
        pod = info.id if info is not None else PodId("", "", uid)
        held = _merged(self.checkpoint.pods[uid], self._allocated(pod, uid))
        if self._has_ended(PodId(*pod.key, uid), info, held, shown):
            return SnapshotPod(pod, uid, info, None, {}, held, ended=True)
        return SnapshotPod(pod, uid, info, None, held)

    def _has_ended(self, me: PodId, info: PodView | None, held: Containers, shown: Offered) -> bool:
        """Return whether the entry of a pod that ``List`` does not show is stale (R2)."""
        history = self.context.history
        # Without List: a pod deleted by force may run on, and its slots be offered (K15).
        if self.listed is None:
            return me in history.ended or (info is not None and info.terminal)
        if me.uid in history.listed or me.uid in history.freed:
            return True
        if self.known.has_ended(info) if info is not None else self.context.synced:
            return True
        # What the init containers of the last call's pod had is offered to it (K7).
        handed_on = _meet(held, shown) or _meet(held, self.context.offered)
        return handed_on and me != self.context.target


def _merged(held: Containers, more: Containers) -> Containers:
    """Return what containers hold by two sources; the first counts where both have it."""
    found = dict(held)
    for name, slots in more.items():
        found[name] = {**slots, **found.get(name, NO_SLOTS)}
    return found


def _meet(held: Containers, slots: Offered) -> bool:
    """Return whether a container holds any of these slots."""
    return any(
        not ids.isdisjoint(slots.get(resource, NOTHING))
        for each in held.values()
        for resource, ids in each.items()
    )
