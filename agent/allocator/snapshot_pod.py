"""One pod of a snapshot, and the stable pods: most pods of a busy node stay the same between calls.

Pure. Values that are needed often are computed once, when the object is made.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.allocator.current_pod import CurrentPod
from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import Checkpoint, Containers, HeldSlots, ListedContainer, ListedPod
from agent.allocator.slots import are_whole_cards
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import RESOURCES, Resource
from contract.reusable import reusable_ids
from placement.pods import UNKNOWN_RANK, AdmissionRank, Key, PodId, PodInfo

Offered: TypeAlias = Mapping[Resource, AbstractSet[str]]
"""Slots that the kubelet offers to any container in a preferred call, by resource."""

Signature: TypeAlias = str
"""Namespace, name and container names of a listed pod, as one text."""

NOTHING: frozenset[str] = frozenset()
NO_SLOTS: HeldSlots = {}
NOT_CHECKPOINTED: Containers = {}


@dataclass(frozen=True)
class SnapshotPod:
    """One pod of a snapshot.

    Attributes:
        id: the pod's ID; without a name if only the checkpoint has it.
        uid: its UID in the kubelet; empty while it is not known.
        info: the pod in the API, possibly deleted by now; ``None`` if only the kubelet knows it.
        listed: its entry in ``List``; ``None`` if there is none.
        held: the slots that its containers hold.
        stale: slots that the checkpoint still has for it after its end: free now, or soon.
        ended: whether it was rejected, or has run and ended: it holds only the slots that ``List``
            still shows.
        sure: whether the entry in ``List`` is certainly this pod's (docs/which-container.md).
        sole: whether no other known pod with its name can have the entry. Then only a pod that the
            agent has not seen yet could have it: if the API rules that out, this pod is sure.
        checkpointed: the slots of its checkpoint entries.
        outlived: whether it is one of :attr:`agent.allocator.snapshot.KubeletHistory.outlived`.
        first: whether it is one of :attr:`agent.allocator.snapshot.KubeletHistory.first`.
        namesakes: the other pods that its entry may be: each as if the entry was its own.
        kubelet_id: its name with the kubelet's UID, which differs for a static pod (K34).
        signature: the signature of its entry: another signature is another pod.
        shows_devices: whether ``List`` shows devices of it.
        lacks: whether a container lacks a part of its request; slots in *stale* do not count as
            lacking here. If only the kubelet knows the pod, a container without devices may lack
            some, and so may a share with only one resource.
    """

    id: PodId
    uid: str
    info: PodInfo | None
    listed: ListedPod | None
    held: Containers
    stale: Containers = field(default_factory=dict)
    ended: bool = False
    sure: bool = True
    sole: bool = True
    checkpointed: Containers = field(default_factory=dict)
    outlived: bool = False
    first: bool = False
    namesakes: tuple["SnapshotPod", ...] = ()
    kubelet_id: PodId = field(init=False, compare=False)
    signature: Signature = field(init=False, compare=False)
    shows_devices: bool = field(init=False, compare=False)
    lacks: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        names = self.listed.names if self.listed is not None else ()
        found = {
            "kubelet_id": PodId(*self.id.key, self.uid),
            "signature": " ".join((*self.id.key, *sorted(names))),
            "shows_devices": self.listed is not None
            and any(one.held for one in self.listed.containers),
            "lacks": self._find_lack(),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def _find_lack(self) -> bool:
        if self.info is None:
            return self.listed is not None and any(map(_may_lack, self.listed.containers))
        return any(
            resource.count_in(each.demand)
            and not self.held.get(each.name, NO_SLOTS).get(resource)
            and not self.stale.get(each.name, NO_SLOTS).get(resource)
            for each in self.info.demand.containers
            for resource in RESOURCES
        )

    def is_stable(self) -> bool:
        """Return whether all sources agree on it and it lacks nothing, so no call is for it."""
        if self.listed is None or self.info is None or self.info.terminal or self.ended:
            return False
        shown = {one.name: one.held for one in self.listed.containers}
        agree = all(self.checkpointed.get(name, slots) == slots for name, slots in shown.items())
        known = {**self.checkpointed, **{name: slots for name, slots in shown.items() if slots}}
        return agree and self.shows_devices and not self.lacks and self.held == known

    def is_init(self, container: str) -> bool:
        """Return whether a container is an ordinary init container, which ``List`` omits (K4)."""
        container_demand = self.info.demand.of(container) if self.info is not None else None
        if container_demand is not None:
            return container_demand.kind is ContainerKind.INIT
        return self.listed is not None and container not in self.listed.names

    def slots(self, resource: Resource) -> frozenset[str]:
        """Return every slot of *resource* that its containers hold."""
        return NOTHING.union(*(one.get(resource, NOTHING) for one in self.held.values()))

    def reusable(self, resource: Resource) -> frozenset[str]:
        """Return the reusable slots of its ordinary init containers (K7)."""
        return reusable_ids(
            (self.is_init(name), slots.get(resource, NOTHING)) for name, slots in self.held.items()
        )

    def shows_exactly(self, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether ``List`` shows one of its containers with exactly *ids*."""
        entry = self.listed
        return entry is not None and any(one.held.get(resource) == ids for one in entry.containers)

    def shows_any(self, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether ``List`` shows one of its containers with some of *ids*."""
        entry = self.listed
        return entry is not None and any(
            ids & one.held.get(resource, NOTHING) for one in entry.containers
        )

    def find_lacking(self) -> ContainerDemand | None:
        """Return the first container that lacks devices; ``None`` without the pod's requests."""
        for each in self.info.demand.containers if self.info is not None else ():
            held = self.held.get(each.name, NO_SLOTS)
            if any(one.count_in(each.demand) and not held.get(one) for one in RESOURCES):
                return each
        return None

    @property
    def rank(self) -> AdmissionRank:
        """Its rank in the order of admission, if the API shows the pod.

        A kubelet admits its first pods in the order of their creation (K1).
        """
        rank = self.info.rank if self.info is not None else UNKNOWN_RANK
        return rank._replace(time_ns=rank.created_ns) if self.first else rank

    @property
    def may_run(self) -> bool:
        """Whether its containers may be running already."""
        return self.outlived or (self.info is not None and self.info.running)

    @property
    def may_be_target(self) -> bool:
        """Whether the kubelet may be admitting it."""
        return not self.ended and (self.info is None or not self.info.terminal)


def _may_lack(container: ListedContainer) -> bool:
    """Return whether a container of an unknown pod may lack devices: a share needs both kinds."""
    cores, memory = (container.held.get(each, NOTHING) for each in RESOURCES)
    return not cores or (not memory and not are_whole_cards(cores))


class StablePods:
    """The stable pods of a snapshot. Immutable, and reused by later snapshots.

    Attributes:
        by_uid: the pods, by the kubelet's UID.
        by_id: the same by ID in the API.
        by_key: the same by name; names are unique among them.
        signatures: the number of pods with each signature.
        held: the slots that they hold.
    """

    __slots__ = ("by_id", "by_key", "by_uid", "held", "signatures")

    def __init__(self, pods: Iterable[SnapshotPod] = ()) -> None:
        self.by_uid: Mapping[str, SnapshotPod] = {each.uid: each for each in pods}
        self.by_id: Mapping[PodId, SnapshotPod] = {each.id: each for each in self.pods}
        self.by_key: Mapping[Key, SnapshotPod] = {each.id.key: each for each in self.pods}
        self.signatures: Mapping[Signature, int] = Counter([each.signature for each in self.pods])
        self.held = all_slots(self.pods)

    @property
    def pods(self) -> Iterable[SnapshotPod]:
        """The pods."""
        return self.by_uid.values()

    def with_pods(self, more: Sequence[SnapshotPod]) -> "StablePods":
        """Return these and more pods, which must have other names."""
        found = StablePods.__new__(StablePods)
        found.by_uid = {**self.by_uid, **{each.uid: each for each in more}}
        found.by_id = {**self.by_id, **{each.id: each for each in more}}
        found.by_key = {**self.by_key, **{each.id.key: each for each in more}}
        signatures = {**self.signatures}
        for each in more:
            signatures[each.signature] = signatures.get(each.signature, 0) + 1
        found.signatures, held = signatures, all_slots(more)
        found.held = {each: self.held[each] | held[each] for each in RESOURCES}
        return found


def find_stable(  # noqa: PLR0913 -- the sources
    before: StablePods,
    more: Iterable[SnapshotPod],
    *,
    checkpoint: Checkpoint,
    listed: Sequence[ListedPod],
    served: Sequence[CurrentPod],
    pods: KnownPods,
) -> StablePods:
    """Return the stable pods: those of the last snapshot whose sources have not changed since.

    Sources are compared by value, which is fast because most are the same objects as before.

    *more* are the other listed pods of the last snapshot. The pods in *served* are never stable.
    """
    entries = {entry.key: entry for entry in listed}
    excluded = {each.id.key for each in served}
    if len(entries) < len(listed):
        names = Counter([entry.key for entry in listed])
        excluded |= {key for key, count in names.items() if count > 1}

    def stays(pod: SnapshotPod) -> bool:
        key, uid = pod.id.key, pod.uid
        now = entries.get(key), pods.by_uid(uid), checkpoint.pods.get(uid, NOT_CHECKPOINTED)
        return (pod.listed, pod.info, pod.checkpointed) == now and key not in excluded

    candidates = [each for each in more if stays(each) and each.is_stable()]
    alike = Counter([each.id.key for each in candidates])
    new = [each for each in candidates if alike[each.id.key] == 1]
    kept = [each for each in before.pods if stays(each)]
    if len(kept) < len(before.by_uid):
        return StablePods([*kept, *new])
    return before.with_pods(new) if new else before


def all_slots(pods: Iterable[SnapshotPod]) -> Mapping[Resource, frozenset[str]]:
    """Return the slots that pods hold."""
    containers = [slots for each in pods for slots in each.held.values()]
    return {
        one: NOTHING.union(*[slots.get(one, NOTHING) for slots in containers]) for one in RESOURCES
    }


def intersects(held: Containers, slots: Offered) -> bool:
    """Return whether a container holds any of these slots."""
    return any(
        not ids.isdisjoint(slots.get(resource, NOTHING))
        for each in held.values()
        for resource, ids in each.items()
    )
