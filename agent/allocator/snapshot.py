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

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import Containers
from agent.allocator.snapshot_pod import (
    NO_SLOTS,
    NOTHING,
    Offered,
    Signature,
    SnapshotPod,
    StablePods,
    all_slots,
    intersects,
)
from agent.holdings.holding import ContainerRef
from contract.resource import RESOURCES, Resource
from placement.pods import Key, PodId


@dataclass(frozen=True)
class AllocationSnapshot:
    """The slots that each container holds at one moment. Immutable.

    Attributes:
        changing: the pods that are not stable; only these may be the target's pod.
        listing: whether ``List`` was available.
        known: the node's pods in the API.
        refused: slots of refused pods, by container: the kubelet may still count them (K21).
        listed_changing: the pods of *changing* that ``List`` shows.
        signatures: how often ``List`` shows each signature.
        held: every slot that a container holds.
    """

    changing: tuple[SnapshotPod, ...] = ()
    listing: bool = False
    stable: StablePods = field(default_factory=StablePods)
    known: KnownPods = field(default_factory=KnownPods)
    refused: Sequence[Containers] = ()
    listed_changing: tuple[SnapshotPod, ...] = field(init=False, compare=False)
    signatures: Mapping[Signature, int] = field(init=False, compare=False)
    held: Mapping[Resource, frozenset[str]] = field(init=False, compare=False)
    _by_id: Mapping[PodId, SnapshotPod] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
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

        These are slots of refused pods (K21), and stale slots of ended pods (K31). A container's
        slots are still counted if its slots of *requested* are not offered. A container without
        slots of *requested* counts like the other containers of its pod. The kubelet frees a pod as
        a whole, but may never have counted a container whose admission it rejected (K21).
        """
        counted: set[str] = set()
        for each in (*self.refused, *(one.stale for one in self.changing)):
            containers = each.values()
            freed = any(one.get(requested, NOTHING) & offered for one in containers)
            for one in containers:
                of_container = one.get(requested, NOTHING)
                if not of_container & offered and (of_container or not freed):
                    counted |= one.get(other, NOTHING)
        return frozenset(counted - self.held[other])

    def has_ended_holder(self, known: KnownPods) -> bool:
        """Return whether a pod holds slots although it has ended, or was deleted, in the API.

        *known* are the pods in the API now.
        """
        return any(
            each.held
            and not each.ended
            and (info := known.by_uid(each.uid)) is not None
            and known.has_ended(info)
            for each in self.pods
        )

    def with_confirmed(self, uids: AbstractSet[str]) -> "AllocationSnapshot":
        """Return the snapshot after the API has confirmed pods, by the kubelet's UIDs."""
        if not any(each.uid in uids and each.sure != each.sole for each in self.changing):
            return self
        pods = (
            replace(each, sure=each.sole) if each.uid in uids else each for each in self.changing
        )
        return replace(self, changing=tuple(pods))


MOST_GONE = 1000
"""After so many further pods, or entries of the checkpoint, ended ones are forgotten."""


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
        first: pods that the API showed before this kubelet instance.
        checkpointed: the entries of the checkpoint so far, as ``Checkpoint.entries``.
        fading: the pods that no source showed at the last pruning.
        fading_entries: the entries that the checkpoint did not have then.
        most: the size at which the history is pruned again.
    """

    listed: frozenset[str] = frozenset()
    identified: frozenset[str] = frozenset()
    freed: frozenset[str] = frozenset()
    ended: frozenset[PodId] = frozenset()
    outlived: frozenset[str] = frozenset()
    first: AbstractSet[str] = frozenset()
    checkpointed: frozenset[int] = frozenset()
    fading: frozenset[str] = frozenset()
    fading_entries: frozenset[int] = frozenset()
    most: int = field(default=0, kw_only=True)

    @property
    def size(self) -> int:
        """The length of the longest part that grows with every pod."""
        return max(map(len, (self.listed, self.identified, self.freed, self.checkpointed)))

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
            elif each.ended and intersects(each.stale, offered):
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

    def with_entries(self, entries: frozenset[int]) -> "KubeletHistory":
        """Return the history with these entries of the checkpoint."""
        if entries <= self.checkpointed:
            return self
        return replace(self, checkpointed=self.checkpointed | entries)

    def pruned(
        self, is_shown: Callable[[str], bool], entries: AbstractSet[int]
    ) -> "KubeletHistory":
        """Return the history without most of the ended pods, once there are many of them.

        A kubelet runs for months. What neither *is_shown* nor among the *entries* of the checkpoint
        is forgotten at the second pruning in a row: an overtaken write may bring it back (K33).
        """
        if self.size < self.most:
            return self
        pods = self.listed | self.identified | self.freed
        gone = frozenset(uid for uid in pods if not is_shown(uid))
        gone_entries = self.checkpointed - entries
        forgotten = gone & self.fading
        result = replace(
            self,
            listed=self.listed - forgotten,
            identified=self.identified - forgotten,
            freed=self.freed - forgotten,
            checkpointed=self.checkpointed - (gone_entries & self.fading_entries),
            fading=gone - forgotten,
            fading_entries=gone_entries - self.fading_entries,
        )
        return replace(result, most=result.size + MOST_GONE)
