"""Builds a snapshot from ``List``, the checkpoint and our own assignments (R1, R2). Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from agent.allocator.current_pod import CurrentPod
from agent.allocator.identity import KnownPods, MatchedEntry, identify, kubelet_uid
from agent.allocator.interfaces import Checkpoint, Containers, ListedPod
from agent.allocator.snapshot import AllocationSnapshot, KubeletHistory
from agent.allocator.snapshot_pod import (
    NO_SLOTS,
    NOT_CHECKPOINTED,
    Offered,
    SnapshotPod,
    StablePods,
    intersects,
)
from placement.pods import PodId, PodInfo


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """Earlier observations, and the offer of the present call.

    The history follows from the sources of earlier snapshots, and confirmations are applied to the
    snapshot itself: neither makes it another one, so they are not compared.

    Attributes:
        history: the pods that this kubelet instance has shown so far.
        confirmed: the kubelet's UIDs of pods that the API showed before and after ``List`` first
            showed their names, so the entries are certainly theirs.
        last_pod: the pod of the last call, by the kubelet's UID.
        finished: as :attr:`agent.allocator.resolver.LastCall.finished`: rejected pods (K1, K8).
        offered: the slots that the kubelet offers; unlisted pods do not hold them.
        refused: as :attr:`agent.allocator.snapshot.AllocationSnapshot.refused`.
        synced: whether all pods of the node are known: then unknown ones were deleted.
    """

    history: KubeletHistory = field(default_factory=KubeletHistory, compare=False)
    confirmed: AbstractSet[str] = field(default=frozenset(), compare=False)
    last_pod: PodId | None = None
    finished: AbstractSet[PodId] = frozenset()
    offered: Offered = field(default_factory=dict)
    refused: Sequence[Containers] = ()
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
                freed=context.history.freed,
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
                SnapshotPod(
                    info.id,
                    uid,
                    info,
                    None,
                    {},
                    outlived=uid in context.history.outlived,
                    first=uid in context.history.first,
                )
                for info in self.known.shown
                if (uid := kubelet_uid(info)) not in there
            ]
        return AllocationSnapshot(tuple(found), listing, stable, self.known, context.refused)

    def _allocated(self, pod: PodId, uid: str) -> Containers:
        served = self.served if self.listed is None else self.served[:1]
        return next((each.allocated for each in served if each.is_pod(pod, uid)), {})

    def _given(self, pod: PodId, uid: str) -> Containers:
        """Return all slots allocated to a pod, even if it was rejected."""
        given: Containers = {}
        for each in self.served:
            given = _merged(given, each.allocated) if each.is_pod(pod, uid) else given
        return given

    def _listed_pod(self, each: MatchedEntry) -> SnapshotPod:
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
            each.uid in self.context.history.first,
            tuple(
                self._listed_pod(
                    MatchedEntry(each.entry, kubelet_uid(info), info, sure=False, sole=False)
                )
                for info in each.namesakes
            ),
        )

    def _is_rejected(self, each: MatchedEntry, held: Containers, *, shows_nothing: bool) -> bool:
        """Return whether a listed pod was rejected or has ended; ``List`` may still show it (K8).

        This matters only for the slots of its init containers. An entry without slots may be that
        of another pod with its name.
        """
        if not held:
            return False
        finished = PodId(*each.id.key, each.uid) in self.context.finished
        if each.info is None:
            freed = each.uid in self.context.history.freed
            return shows_nothing and finished and (freed or intersects(held, self.context.offered))
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
        is_reused = intersects(held, shown) or intersects(held, self.context.offered)
        return is_reused and kubelet_id != self.context.last_pod


def _merged(held: Containers, more: Containers) -> Containers:
    """Return the slots of containers from two sources; the first has precedence."""
    found = dict(held)
    for name, slots in more.items():
        found[name] = {**slots, **found.get(name, NO_SLOTS)}
    return found
