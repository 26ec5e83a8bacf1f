"""What the allocator keeps of its node between calls, under one lock.

It keeps the sources as they were seen last, and one snapshot put together of them. The snapshot
never changes; each method that makes another one says so.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

from agent.allocator import saved_state
from agent.allocator.corrections import (
    by_checkpoint,
    by_list,
    by_offer,
    is_disproved,
    with_uid,
)
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import KnownPods, kubelet_uid
from agent.allocator.interfaces import Checkpoint, Correction, ListedPod, Store
from agent.allocator.resolver import LastCall, Resolution
from agent.allocator.snapshot import (
    AllocationSnapshot,
    KubeletHistory,
    Offered,
    SnapshotContext,
    build_snapshot,
)
from agent.allocator.snapshot_pod import StablePods, find_stable
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import Key, PodId, PodInfo
from placement.search import Plan

_MOST_UNADVISED = 64
_NOTHING_OFFERED: Offered = {}


class _Sources(NamedTuple):
    """All that a snapshot was put together of; equal sources make equal snapshots.

    What the kubelet has shown so far (:class:`KubeletHistory`) follows from these, and a
    confirmation is applied to the snapshot (:meth:`AllocationSnapshot.with_confirmed`).
    """

    checkpoint: Checkpoint | None
    listed: Sequence[ListedPod] | None
    known: KnownPods
    served: tuple[CurrentPod, ...]
    last_pod: PodId | None
    finished: AbstractSet[PodId]
    offered: Offered
    synced: bool


class NodeState:
    """The sources as they were seen last, and what one call leaves for the next.

    ``with state:`` holds the lock. It covers memory only: nothing outside is asked meanwhile.

    Attributes:
        snapshot: who holds what, by what was seen last.
        known: what the API shows of pods; newer than the snapshot's until the next look.
        last_call: what the last call has left (R3).
        current: the current pod.
        assigned_so_far: how many assignments this process has made.
        checkpoint: the checkpoint as it was read last; ``None`` where it could not be read.
        listed: ``List`` as it was seen last; ``None`` where it could not be had.
    """

    def __init__(self, store: Store) -> None:
        """Start with what the agent before has left in *store*."""
        self.snapshot = AllocationSnapshot()
        self.known = KnownPods()
        self._store = store
        self._kubelet, self.current, self.last_call = saved_state.decode(store.load())
        self._encoder = saved_state.Encoder()
        self.assigned_so_far = 0
        self.checkpoint: Checkpoint | None = None
        self.listed: Sequence[ListedPod] | None = None
        self._built_of: _Sources | None = None
        self._stable = StablePods()
        self._earlier: CurrentPod | None = None
        self._offered = _NOTHING_OFFERED
        self._ever_checkpointed: set[str] = set()  # UIDs
        self._confirmed: frozenset[str] = frozenset()  # UIDs of which no other pod can be meant
        self._history = KubeletHistory()
        if self.current is not None and self.current.confirmed:
            self._confirmed = frozenset({self.current.uid})
        self._synced = False
        self._plan: tuple[PodId, Plan] | None = None
        self._unadvised: dict[frozenset[str], None] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Take the lock."""
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._lock.release()

    # --- sources ------------------------------------------------------------------------

    def set_kubelet(self, instance: str) -> None:
        """Apply which instance of the kubelet is there: a new one tries every pod anew."""
        if self._kubelet not in {None, instance}:
            self.current, self._earlier, self.last_call = None, None, LastCall()
            self._history = KubeletHistory()
            self.listed, self._stable, self._built_of = None, StablePods(), None
            self._plan = None
        self._kubelet = instance

    def set_pods(self, pods: Sequence[PodInfo], *, synced: bool) -> None:
        """Apply what the API shows; the next snapshot has it."""
        self.known = self.known.updated(pods)
        self._synced = synced

    def apply_observation(
        self,
        checkpoint: Checkpoint | None,
        listed: Sequence[ListedPod] | None,
        *,
        offered: Offered | None = None,
        caught_up: bool = False,
    ) -> list[Correction]:
        """Apply what checkpoint and ``List`` show; return which guesses that has disproved.

        Args:
            checkpoint: the checkpoint; ``None`` where it cannot be read.
            listed: the entries of ``List``; ``None`` where it cannot be had.
            offered: what the kubelet offers in the call that came.
            caught_up: the kubelet has taken in all our responses: ``List`` shows them by now.
        """
        before = self.checkpoint or checkpoint or Checkpoint()
        self._ever_checkpointed |= before.pods.keys()
        if listed is None:
            self._stable = StablePods()
        elif checkpoint is not self.checkpoint or listed is not self.listed:
            self._stable = find_stable(
                self.snapshot.stable,
                self.snapshot.listed_changing,
                checkpoint=checkpoint or Checkpoint(),
                listed=listed,
                served=self._served,
                pods=self.known,
            )
        self.checkpoint, self.listed = checkpoint, listed
        self._offered = offered or _NOTHING_OFFERED
        corrections = self._correct(before, checkpoint) if checkpoint is not None else []
        self.update_snapshot()
        if caught_up and self.current is not None:
            was, snapshot = self.current, self.snapshot
            now = by_offer(was, self._offered, checkpoint or Checkpoint(), snapshot)
            if listed is not None:
                # Who got what is offered was rejected, and so were those listed beside it (K1).
                was, (now, wrong) = now, by_list(now, snapshot)
                corrections += wrong
                self._plan = None if _is_of_another_pod(wrong) else self._plan
            if is_disproved(was, now, snapshot):
                self.last_call = self.last_call.before_wrong_guess()
            self.current = now
            self.update_snapshot()
        self._remember(offered=bool(offered))
        return corrections

    def confirm(
        self,
        names: Collection[Key],
        shown: AbstractSet[str],
        uids_seen: Callable[[Key], Sequence[str]],
    ) -> None:
        """Apply what the API has shown since ``List`` showed the pods of the snapshot.

        Args:
            names: the names that were read.
            shown: the kubelet's UIDs of the pods that the API showed before ``List``.
            uids_seen: the UIDs of the pods of a name, as they came, by the watch.
        """
        found = set[str]()
        for each in self.snapshot.listed_changing:
            known = map(kubelet_uid, self.known.of_name(each.id.key))
            if not {*known} - self._history.met <= {each.uid}:
                continue  # another of its name may be asking
            is_new = self.last_call.is_new(each, self.snapshot)
            # After a wrong guess, new is what came since the call before it.
            was_listed = each.shows or self.last_call.ruled_out
            is_shown = each.uid in shown and self.known.is_shown(each.uid)
            if is_new and not was_listed and is_shown and each.id.key in names:
                found.add(each.uid)
            if each.lacks and each.info is not None:
                named = uids_seen(each.id.key)
                # Those of a name are admitted as they came (K1): none of before comes to List now.
                met = [at for at, uid in enumerate(named) if is_new and uid in self._history.met]
                if list(named[met[-1] + 1 if met else 0 :]) == [each.id.uid]:
                    found.add(each.uid)
        if not found <= self._confirmed:
            self._confirmed |= found
            self.snapshot = self.snapshot.with_confirmed(self._confirmed)

    def correct(self, checkpoint: Checkpoint) -> list[Correction]:
        """Apply what a newer checkpoint says of our assignments; return the wrong guesses.

        The sources stay those of the last look: ``List``, which is older, would contradict the
        file.
        """
        was = self.current
        found = self._correct(self.checkpoint or checkpoint, checkpoint)
        if self.current is not was:
            self.update_snapshot()
        return found

    def drop_unconfirmed_guesses(self) -> None:
        """Forget guesses that neither checkpoint nor ``List`` shows."""
        if self.current is not None:
            self.current = self.current.without_guesses()
        if self._earlier is not None:
            self._earlier = self._earlier.without_guesses()

    def _correct(self, before: Checkpoint, now: Checkpoint) -> list[Correction]:
        if self.current is None:
            return []
        entries = self.listed or ()
        current = with_uid(self.current, before, now, entries=entries, pods=self.known)
        if self._earlier is not None:
            # The file may have been late for it (K33). Another of its name may be listed by now.
            self._earlier = with_uid(self._earlier, before, now, entries=(), pods=self.known)
        self.current, found = by_checkpoint(
            current, before, now, may_be_new=self._may_be_new, pods=self.known
        )
        if _is_of_another_pod(found):
            self._plan = None
            self.last_call = self.last_call.before_wrong_guess()
        return found

    def _may_be_new(self, uid: str) -> bool:
        """Return whether an entry of the checkpoint may be new (K29, K33)."""
        info = self.known.by_uid(uid)
        if info is None:
            return uid not in self._ever_checkpointed
        if self.listed is None:
            return not info.terminal
        return any(entry.key == info.id.key for entry in self.listed)

    def _remember(self, *, offered: bool) -> None:
        """Keep which pods were listed, and whose slots were offered (R2)."""
        snapshot = self.snapshot
        self._history = self._history.updated(snapshot, offered=offered)
        if snapshot.listing:  # a name that has gone may come back as another pod's
            listed = {each.uid for each in snapshot.listed_changing}
            self._confirmed &= snapshot.stable.by_uid.keys() | listed
        self.last_call = self.last_call.forget_unlisted(snapshot)

    # --- the snapshot -------------------------------------------------------------------

    @property
    def _served(self) -> tuple[CurrentPod, ...]:
        return tuple(each for each in (self.current, self._earlier) if each is not None)

    def update_snapshot(self) -> None:
        """Put the snapshot together anew, unless it would be the same."""
        last = self.last_call
        sources = _Sources(
            self.checkpoint,
            self.listed,
            self.known,
            self._served,
            last.pod if last.pod not in last.finished else None,
            last.finished,
            self._offered,
            self._synced,
        )
        if sources != self._built_of:
            self._built_of = sources
            context = SnapshotContext(
                self._history,
                self._confirmed,
                last_pod=sources.last_pod,
                finished=sources.finished,
                offered=sources.offered,
                synced=sources.synced,
            )
            self.snapshot = build_snapshot(
                checkpoint=self.checkpoint or Checkpoint(),
                listed=self.listed,
                served=self._served,
                known=self.known,
                context=context,
                stable=self._stable,
            )
            self._history = self._history.with_ended(self.snapshot)

    def assume_free(self, resource: Resource, ids: frozenset[str]) -> None:
        """Make the snapshot as if the kubelet had offered *ids* to any container."""
        self._offered = {resource: ids}
        self.update_snapshot()

    def set_last_call(self, last_call: LastCall) -> AllocationSnapshot:
        """Apply which pod the call is for; return the snapshot as of then.

        Pods that it shows to be rejected hold no more than ``List`` shows, and what init containers
        of the target have left over may be offered to it.
        """
        before, self.last_call = self.last_call, last_call
        targets = {before.pod, last_call.pod} if before.pod != last_call.pod else set()
        finished = before.finished ^ last_call.finished
        if any(
            (each.kubelet_id in finished and (each.held or each.stale))
            or (each.kubelet_id in targets and not (each.listed and self.known.is_shown(each.uid)))
            for each in self.snapshot.changing
        ):
            self.update_snapshot()
        return self.snapshot

    def has_ended_holder(self) -> bool:
        """Return whether a pod holds something that the API shows no more, or as ended."""
        return any(
            each.held
            and not each.ended
            and (info := self.known.by_uid(each.uid)) is not None
            and self.known.has_ended(info)
            for each in self.snapshot.pods
        )

    def has_ended(self, uid: str) -> bool:
        """Return whether a pod, by the kubelet's UID, has ended: its entry may stay on (K29)."""
        known, info = self.snapshot.of_uid(uid), self.known.by_uid(uid)
        if known is not None:
            return known.ended or (info is not None and info.terminal)
        return info.terminal if info is not None else uid in self._ever_checkpointed

    def is_guessed(self, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether these slots were given to a container that was guessed."""
        return any(
            each.is_guess and (each.resource, each.ids) == (resource, ids)
            for pod in (self.current, self._earlier)
            if pod is not None
            for each in pod.assignments
        )

    # --- assignments --------------------------------------------------------------------

    def assign(
        self, target: Resolution, resource: Resource, ids: frozenset[str], *, allocated: bool
    ) -> None:
        """Record slots of a container; :meth:`save` has to come before the response leaves.

        Where they are allocated, the snapshot has them.
        """
        current = self.current
        if current is None or current.id != target.pod:
            found = self.snapshot.pod(target.pod)
            uid = found.uid if found is not None else target.pod.uid
            self._earlier, current = current, CurrentPod(target.pod, uid)
        name = target.container.name
        self.current = current.with_assignment(
            Assignment(name, resource, ids, target.evidence, allocated)
        )
        self.assigned_so_far += 1
        if allocated:
            self.update_snapshot()

    def save(self) -> None:
        """Write what the next agent has to know."""
        current = self.current
        if current is not None:
            current = replace(current, confirmed=current.uid in self._confirmed)
        self._store.save(self._encoder.encode(self._kubelet, current, self.last_call))

    def refuse(self, pod: PodId | None) -> None:
        """Apply that a call was refused: the kubelet rejects the pod, and frees what it has."""
        self.last_call = self.last_call.refused(self.snapshot)
        current = self.current
        if current is not None and pod in {None, current.id}:
            known = current.without_guesses()
            if known.allocated:  # a restarted kubelet counts it for a while (K21)
                self._earlier = known
            self.current = replace(current, assignments=())
        self._plan = None

    def find_assignment(
        self, resource: Resource, ids: frozenset[str], checkpoint: Checkpoint | None
    ) -> Assignment | None:
        """Return the last assignment, if an ``Allocate`` of *ids* carries it out or repeats it.

        A call is asked again only where an agent has died before its response arrived. One that
        hands an init container's slots on looks the same (K7): then the file has that container.
        """
        current = self.current
        if current is None or not current.assignments:
            return None
        last = current.assignments[-1]
        if (last.resource, last.ids) != (resource, ids):
            return None
        if last.allocated:
            had = checkpoint.pods.get(current.uid, {}) if checkpoint is not None else {}
            if self.assigned_so_far or had.get(last.container, {}).get(resource):
                return None
        return last

    def prove(self, uid: str, container: str, resource: Resource) -> None:
        """Apply that the checkpoint shows a container with just what it was assigned."""
        if self.current is not None and self.current.uid == uid:
            for each in self.current.assignments:
                if (each.container, each.resource) == (container, resource):
                    self.current = self.current.proven(each)

    def find_evidence(self, pod: PodId, container: str, resource: Resource) -> Evidence:
        """Return how it was found that a container holds what it holds."""
        found = None
        if self.current is not None and self.current.id == pod:
            found = self.current.find_evidence(container, resource)
        return found or Evidence.RECORD

    # --- placing ------------------------------------------------------------------------

    def plan(self, pod: PodId) -> Plan | None:
        """Return which cards are planned for the containers of *pod* that are not served yet."""
        return self._plan[1] if self._plan is not None and self._plan[0] == pod else None

    def keep_plan(self, pod: PodId, plan: Plan) -> None:
        """Plan cards for the containers of a pod; the kubelet admits one pod at a time (K1)."""
        self._plan = pod, plan

    def note_advice(self, ids: frozenset[str], *, known: bool) -> None:
        """Record whether the wishes of the pod's author were known when *ids* were chosen."""
        self._unadvised.pop(ids, None)
        if not known:
            self._unadvised[ids] = None
            while len(self._unadvised) > _MOST_UNADVISED:
                del self._unadvised[next(iter(self._unadvised))]

    def is_unadvised(self, ids: frozenset[str]) -> bool:
        """Return whether *ids* were chosen without the wishes of the pod's author."""
        return ids in self._unadvised


def _is_of_another_pod(corrections: Sequence[Correction]) -> bool:
    """Return whether slots of the current pod surely are another pod's.

    Of a pod that only ``List`` shows the UID is not known, of one that only the checkpoint shows
    the name: these may be one pod.
    """
    pods = [(each.guessed.pod, each.proven.pod) for each in corrections]
    return any(
        right != guessed if guessed.uid else right.name and right.key != guessed.key
        for guessed, right in pods
    )
