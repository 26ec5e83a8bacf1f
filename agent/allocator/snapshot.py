"""The snapshot: the slots that each container holds at one moment, from three sources (R1). Pure.

- ``List``: the slots that it shows are held, whatever the other sources have. It omits ordinary
  init containers (K4).
- Our own assignments to the current pod, which is the pod that was served last.
- The kubelet's checkpoint, read before ``List``. It has a container once its whole request is
  allocated (K28). It is used for ordinary init containers, and for pods that ``List`` does not
  show.

A pod has *ended* if it was rejected, or has run and ended: its checkpoint entries are stale, and
their slots are free, or will be as soon as the kubelet checks (R2). The rules R1 to R7 are in
docs/architecture.md, the facts K1 to K35 in docs/kubelet-facts.md.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agent.allocator.current_pod import CurrentPod
from agent.allocator.identity import Identified, KnownPods, identify, kubelet_uid
from agent.allocator.interfaces import (
    Checkpoint,
    Containers,
    ListedPod,
)
from agent.allocator.snapshot_pod import (
    NO_SLOTS,
    NOT_CHECKPOINTED,
    NOTHING,
    Signature,
    SnapshotPod,
    StablePods,
    all_slots,
)
from agent.holdings.holding import ContainerRef
from contract.resource import RESOURCES, Resource
from placement.pods import Key, PodId, PodInfo

Offered: TypeAlias = Mapping[Resource, AbstractSet[str]]
"""Slots that the kubelet offers to any container in a preferred call, by resource."""


@dataclass(frozen=True)
class AllocationSnapshot:
    """The slots that each container holds at one moment. Immutable.

    Attributes:
        changing: the pods that are not stable; only these may be the target's pod.
        listing: whether ``List`` was available.
        stable: the stable pods.
        known: the node's pods in the API.
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
        """Compute the values that every call needs."""
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
        """Every pod that is listed or has a checkpoint entry."""
        return (*self.stable.pods, *self.changing)

    def pod(self, pod: PodId) -> SnapshotPod | None:
        """Return a pod by its ID."""
        return self._by_id.get(pod) or self.stable.by_id.get(pod)

    def lists(self, key: Key) -> bool:
        """Return whether ``List`` shows a pod with this name."""
        return key in self.stable.by_key or any(each.id.key == key for each in self.listed_changing)

    def is_shown(self, pod: SnapshotPod) -> bool:
        """Return whether the API shows a pod."""
        return self.known.is_shown(pod.uid)

    def pod_by_uid(self, uid: str) -> SnapshotPod | None:
        """Return a pod by its UID in the kubelet."""
        found = self.stable.by_uid.get(uid)
        return found or next((each for each in self.changing if each.uid == uid), None)

    def containers(self, pod: PodId) -> Containers:
        """Return the slots that the containers of a pod hold."""
        found = self.pod(pod)
        return {} if found is None else found.held

    def holding(self, ref: ContainerRef, resource: Resource) -> frozenset[str] | None:
        """Return the slots of *resource* that a container holds."""
        return self.containers(ref.pod).get(ref.container, NO_SLOTS).get(resource)

    def find(self, resource: Resource, ids: frozenset[str]) -> list[ContainerRef]:
        """Return the containers that hold exactly *ids*; several if they were reused (K7)."""
        return [
            ContainerRef(each.id, name)
            for each in (self.pods if ids <= self.stable.held[resource] else self.changing)
            for name, slots in each.held.items()
            if slots.get(resource) == ids
        ]

    def taken(self, ref: ContainerRef, resource: Resource, ids: AbstractSet[str]) -> frozenset[str]:
        """Return the slots among *ids* that another container holds.

        The reusable slots of ordinary init containers of its own pod are not among them (K7).
        """
        taken = set(self.stable.held[resource] & ids)
        for each in self.changing:
            has = each.slots(resource)
            if each.id == ref.pod:
                has -= each.reusable(resource)
            taken |= has & ids
        return frozenset(taken - (self.holding(ref, resource) or NOTHING))

    def reusable(self, pod: PodId, resource: Resource) -> frozenset[str]:
        """Return the reusable slots of a pod's ordinary init containers (K7)."""
        found = self.pod(pod)
        return NOTHING if found is None else found.reusable(resource)

    def uncertain(self, resource: Resource) -> frozenset[str]:
        """Return the slots of unlisted pods, which may have ended without our knowing."""
        unlisted = (each for each in self.changing if self.listing and each.listed is None)
        return all_slots(unlisted)[resource]

    def withheld(
        self, requested: Resource, offered: AbstractSet[str], other: Resource
    ) -> frozenset[str]:
        """Return slots of *other* that the kubelet counts as used though no pod holds them (R7).

        These are stale slots of ended pods (K31). A container's slots are still counted if its
        slots of *requested* are not offered. A container without slots of *requested* counts like
        the other containers of its pod. The kubelet frees a pod as a whole, but may never have
        counted a container whose admission it rejected (K21).

        Args:
            requested: the requested resource.
            offered: its offered slots.
            other: the other resource.
        """
        counted: set[str] = set()
        for each in self.changing:
            containers = each.stale.values()
            freed = any(one.get(requested, NOTHING) & offered for one in containers)
            for one in containers:
                of_container = one.get(requested, NOTHING)
                if not of_container & offered and (of_container or not freed):
                    counted |= one.get(other, NOTHING)
        return frozenset(counted - self.held[other])

    def with_confirmed(self, uids: AbstractSet[str]) -> "AllocationSnapshot":
        """Return the snapshot after the API has confirmed pods, by the kubelet's UIDs."""
        if not any(each.uid in uids and each.sure != each.sole for each in self.changing):
            return self
        pods = (
            replace(each, sure=each.sole) if each.uid in uids else each for each in self.changing
        )
        return replace(self, changing=tuple(pods))


@dataclass(frozen=True, slots=True)
class KubeletHistory:
    """The pods that one kubelet instance has shown so far (R2), by the kubelet's UIDs.

    A new instance gets a new history. Immutable: :meth:`updated` returns a new one.

    Attributes:
        listed: pods that ``List`` has shown: if it does not show them any more, they have ended. A
            pod that a restarted kubelet has not listed yet keeps its slots (K11).
        identified: those of them that were certainly the shown pod with their name.
        freed: ended pods whose slots the kubelet has offered since then: it has freed them.
        ended: pods that had ended, and held nothing, by the last available ``List``; with their
            names, since a UID may not be known. They stay ended while ``List`` is unavailable.
        outlived: pods that started without proof under the kubelet before: they may run, though the
            checkpoint lacks their devices (K33).
    """

    listed: frozenset[str] = frozenset()
    identified: frozenset[str] = frozenset()
    freed: frozenset[str] = frozenset()
    ended: frozenset[PodId] = frozenset()
    outlived: AbstractSet[str] = frozenset()

    def updated(self, snapshot: AllocationSnapshot, *, offered: Offered) -> "KubeletHistory":
        """Return the history after an observation; *offered* are the slots that the call offers."""
        stable = snapshot.stable.by_uid.keys()
        listed, identified = set(stable - self.listed), set(stable - self.identified)
        held, freed = set(stable & self.freed), set[str]()
        for each in snapshot.changing:
            if each.listed is not None and each.sure:
                identified.add(each.uid)
            if each.listed is not None and each.uid:
                listed.add(each.uid)
                if not each.ended:
                    held.add(each.uid)
                elif offered and each.info is None:
                    freed.add(each.uid)
            elif each.ended and _intersects(each.stale, offered):
                freed.add(each.uid)
        return replace(
            self,
            listed=self.listed | listed,
            identified=self.identified | identified,
            freed=self.freed - held | freed,
        )

    def with_ended(self, snapshot: AllocationSnapshot) -> "KubeletHistory":
        """Return the history with the ended pods of a snapshot, if ``List`` was available."""
        if not snapshot.listing:
            return self
        ended = (each.kubelet_id for each in snapshot.changing if each.ended and not each.held)
        return replace(self, ended=frozenset(ended))


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """Earlier observations, and the offer of the present call.

    Attributes:
        history: the pods that this kubelet instance has shown so far.
        confirmed: the kubelet's UIDs of pods that the API showed before and after ``List`` first
            showed their names, so the entries are certainly theirs.
        last_pod: the pod of the last call, by the kubelet's UID.
        finished: as :attr:`agent.allocator.resolver.LastCall.finished`: rejected pods (K1, K8).
        offered: the slots that the kubelet offers; unlisted pods do not hold them.
        synced: whether all pods of the node are known: then unknown ones were deleted.
    """

    history: KubeletHistory = field(default_factory=KubeletHistory)
    confirmed: AbstractSet[str] = frozenset()
    last_pod: PodId | None = None
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
    """Build a snapshot from the three sources.

    Args:
        checkpoint: the kubelet's checkpoint; empty if it cannot be read.
        listed: the entries of ``List``; ``None`` if it is unavailable.
        served: the current pod, then the one before it. The checkpoint may lack the newest
            container (K33): without ``List`` only the agent's own assignments have it.
        known: the pods in the API.
        context: earlier observations, and the offer of the present call.
        stable: the result of :func:`agent.allocator.snapshot_pod.find_stable` for these sources.
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
        """Build the snapshot: listed pods, then other checkpoint entries, then our assignments."""
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
                identified=context.history.identified,
                last_pod=context.last_pod,
            )
        ]
        there = stable.by_uid.keys() | {each.uid for each in found}
        unlisted = [uid for uid in self.checkpoint.pods if uid not in there]
        if unlisted:
            shown = AllocationSnapshot(tuple(found), listing, stable).held
            found += [self._unlisted_pod(uid, shown) for uid in unlisted]
        gone = context.history.ended | context.finished
        for each in self.served:  # a rejected pod's slots are counted for a while (K21)
            if not any(each.is_pod(pod.id, pod.uid) for pod in found):
                info, given = self.known.by_uid(each.uid), self._given(each.id, each.uid)
                kubelet_id = PodId(*each.id.key, each.uid)
                if listing and not given and kubelet_id not in context.finished:
                    continue  # it was guessed wrongly, and may be listed later
                ended = (
                    listing
                    or kubelet_id in gone
                    or (info is not None and self.known.has_ended(info))
                )
                held, stale = ({}, given) if ended else (each.allocated, {})
                found.append(SnapshotPod(each.id, each.uid, info, None, held, stale, ended))
        if not listing:  # only the API shows pods that are not served yet
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

    def _given(self, pod: PodId, uid: str) -> Containers:
        """Return all slots allocated to a pod, even if it was rejected."""
        given: Containers = {}
        for each in self.served:
            given = _merged(given, each.allocated) if each.is_pod(pod, uid) else given
        return given

    def _listed_pod(self, each: Identified) -> SnapshotPod:
        """Return a listed pod with the slots that it holds.

        These are the slots that ``List`` shows, then our assignments if it is the current pod, then
        checkpoint entries of containers that ``List`` does not show, unless the kubelet has freed
        the pod since.
        """
        shown = {one.name: one.held for one in each.entry.containers}
        checkpointed = self.checkpoint.pods.get(each.uid, NOT_CHECKPOINTED)
        # The checkpoint was read before List: if List differs, the kubelet has freed the pod (R2).
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
        ended = freed or self._is_rejected(each, held, shows_nothing=not any(shown.values()))
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
            each.uid in self.context.history.outlived,
            tuple(
                self._listed_pod(
                    Identified(each.entry, kubelet_uid(info), info, sure=False, sole=False)
                )
                for info in each.namesakes
            ),
        )

    def _is_rejected(self, each: Identified, held: Containers, *, shows_nothing: bool) -> bool:
        """Return whether a listed pod was rejected or has ended; ``List`` may still show it (K8).

        This matters only for the slots of its init containers. An entry without slots may be that
        of another pod with its name.
        """
        if not held:
            return False
        finished = PodId(*each.id.key, each.uid) in self.context.finished
        if each.info is None:
            freed = each.uid in self.context.history.freed
            return shows_nothing and finished and (freed or _intersects(held, self.context.offered))
        return (shows_nothing and each.info.terminal) or (
            finished and SnapshotPod(each.id, each.uid, each.info, each.entry, held).lacks
        )

    def _unlisted_pod(self, uid: str, shown: Offered) -> SnapshotPod:
        """Return a pod of the checkpoint that ``List`` does not show."""
        info = self.known.by_uid(uid)
        named = (each.id for each in self.served if each.uid == uid)
        pod = info.id if info is not None else next(named, PodId("", "", uid))
        held = _merged(self.checkpoint.pods[uid], self._allocated(pod, uid))
        if self._has_ended(PodId(*pod.key, uid), info, held, shown):
            stale = _merged(held, self._given(pod, uid))
            return SnapshotPod(pod, uid, info, None, {}, stale, ended=True)
        return SnapshotPod(pod, uid, info, None, held)

    def _has_ended(
        self, kubelet_id: PodId, info: PodInfo | None, held: Containers, shown: Offered
    ) -> bool:
        """Return whether the entry of a pod that ``List`` does not show is stale (R2)."""
        history = self.context.history
        # Without List: a force-deleted pod may still run while its slots are offered (K15).
        if kubelet_id.uid in history.freed:
            return True
        if self.listed is None:
            # A pod that lacks devices after its admission was rejected, and runs nowhere.
            rejected = kubelet_id in self.context.finished and (
                SnapshotPod(kubelet_id, kubelet_id.uid, info, None, held).lacks
            )
            return rejected or kubelet_id in history.ended or (info is not None and info.terminal)
        if kubelet_id.uid in history.listed:
            return True
        if self.known.has_ended(info) if info is not None else self.context.synced:
            return True
        # The reusable slots of the last call's pod are offered to itself (K7).
        is_reused = _intersects(held, shown) or _intersects(held, self.context.offered)
        return is_reused and kubelet_id != self.context.last_pod


def _merged(held: Containers, more: Containers) -> Containers:
    """Return the slots of containers from two sources; the first has precedence."""
    found = dict(held)
    for name, slots in more.items():
        found[name] = {**slots, **found.get(name, NO_SLOTS)}
    return found


def _intersects(held: Containers, slots: Offered) -> bool:
    """Return whether a container holds any of these slots."""
    return any(
        not ids.isdisjoint(slots.get(resource, NOTHING))
        for each in held.values()
        for resource, ids in each.items()
    )
