"""The state that the allocator keeps between calls, under one lock.

It has the last observed sources, and one snapshot built from them. Snapshots are immutable; the
docstring of a method says if it builds a new one.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from agent.allocator import saved_state
from agent.allocator.confirmation import find_confirmed
from agent.allocator.corrections import (
    as_proven,
    correct_by_checkpoint,
    correct_by_list,
    correct_by_offer,
    find_proven,
    is_disproved,
    is_of_another_pod,
    with_uid,
)
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.guesses import drop_freed, find_left, find_misplaced
from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import (
    Checkpoint,
    CheckpointOwner,
    Correction,
    ListedPod,
    Store,
    entry_hash,
)
from agent.allocator.resolver import LastCall, Resolution
from agent.allocator.snapshot import AllocationSnapshot, KubeletHistory
from agent.allocator.snapshot_builder import SnapshotContext, build_snapshot
from agent.allocator.snapshot_pod import Offered, StablePods, find_stable
from agent.errors import KubeletReplaced
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import Key, PodId, PodInfo
from placement.search import Plan

_MOST_CHOICES = 256


class NodeState:
    """The last observed sources, and the state kept from one call to the next.

    ``with state:`` holds the lock. It protects memory only: no I/O while it is held.

    Attributes:
        kubelet: the kubelet instance; ``None`` before the first one is known.
        snapshot: the snapshot of the last observation.
        known: the pods that the API shows; newer than the snapshot's until the next observation.
        last_call: the state kept from the last call (R3).
        assigned_so_far: the number of assignments of this process.
        checkpoint: the last checkpoint; ``None`` if it could not be read.
        listed: the last ``List``; ``None`` if it was unavailable.
    """

    def __init__(self, store: Store) -> None:
        """Start with the state that an earlier agent saved in *store*."""
        self.snapshot = AllocationSnapshot()
        self.known = KnownPods()
        self._store = store
        saved = saved_state.decode(store.load())
        self.kubelet, self.current, self.last_call = saved.kubelet, saved.current, saved.last_call
        self._encoder = saved_state.Encoder()
        self.assigned_so_far = 0
        self.checkpoint: Checkpoint | None = None
        self.listed: Sequence[ListedPod] | None = None
        self._built_of: tuple[object, ...] | None = None  # the sources of the snapshot
        self._stable = StablePods()
        self._earlier: CurrentPod | None = None
        self._left: tuple[CurrentPod, ...] = ()  # refused, or guessed wrongly: as find_left
        self._offered: Offered = {}
        self._confirmed: frozenset[str] = frozenset()  # UIDs of certainly identified pods
        self._read: frozenset[Key] = frozenset()  # names read from the API since they are listed
        self._history = KubeletHistory(outlived=saved.outlived)
        if self.current is not None and self.current.confirmed:
            self._confirmed = frozenset({self.current.uid})
        self._synced = False
        self._plan: tuple[PodId, Plan] | None = None
        self._chosen_for: dict[frozenset[str], ContainerRef | None] = {}  # the newest is the last
        self._unproven = saved.unproven  # UIDs of pods that started without proof
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    @contextmanager
    def of_kubelet(self, instance: str | None) -> Iterator[Self]:
        """Hold the lock, if *instance* is still the kubelet.

        Raises:
            KubeletReplaced: another kubelet has been noticed since, which has its own state.
        """
        with self:
            if self.kubelet != instance:
                raise KubeletReplaced("another kubelet runs now")
            yield self

    # --- sources ------------------------------------------------------------------------

    def set_kubelet(self, instance: str) -> None:
        """Set the kubelet instance; a new one admits every pod again, so the state is reset."""
        if self.kubelet not in {None, instance}:
            history = KubeletHistory(outlived=self._unproven, first=self.known.uids)
            self._history, self._unproven = history, frozenset()
            self.current, self._earlier, self.last_call = None, None, LastCall()
            self._left = ()
            self.listed, self._stable, self._built_of = None, StablePods(), None
            self._plan = None
        self.kubelet = instance

    def set_pods(self, pods: Sequence[PodInfo], *, synced: bool) -> None:
        """Set the pods that the API shows; the next snapshot uses them."""
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
        """Apply checkpoint and ``List``, build a snapshot, and return the disproved guesses.

        Args:
            checkpoint: the checkpoint; ``None`` if it cannot be read.
            listed: the entries of ``List``; ``None`` if it is unavailable.
            offered: the slots that the kubelet offers in the present call.
            caught_up: the kubelet has processed all our responses, so ``List`` shows them.
        """
        before = self.checkpoint or checkpoint or Checkpoint()
        self._history = self._history.with_entries(before.entries)
        if listed is None:
            self._stable = StablePods()
        elif checkpoint is not self.checkpoint or listed is not self.listed:
            self._stable = find_stable(
                self.snapshot.stable,
                self.snapshot.listed_changing,
                checkpoint=checkpoint or Checkpoint(),
                listed=listed,
                served=self.served,
                pods=self.known,
            )
        self.checkpoint, self.listed = checkpoint, listed
        self._offered = offered or {}
        self._left = drop_freed(self._left, self._offered)
        corrections = self._correct(before, checkpoint) if checkpoint is not None else []
        self.update_snapshot()
        if caught_up and self.current is not None:
            was, snapshot = self.current, self.snapshot
            now = correct_by_offer(was, self._offered, checkpoint or Checkpoint(), snapshot)
            left = now
            if listed is not None:
                # The pod that got the offered slots was rejected, and so were pods listed with it
                # (K1).
                was, (now, wrong) = now, correct_by_list(now, snapshot)
                corrections += wrong
                self._plan = None if is_of_another_pod(wrong) else self._plan
            if is_disproved(was, now, snapshot):
                now = self._correct_pod(was, now, corrections, checkpoint or Checkpoint())
            self.current = now
            self.update_snapshot()
            self._leave(left)
        self._remember()
        return corrections

    def confirm(
        self,
        names: Collection[Key],
        shown: AbstractSet[str],
        uids_seen: Callable[[Key], Sequence[str]],
    ) -> None:
        """Confirm pods of the snapshot that the API still shows after ``List``.

        Args:
            names: the names that were just read from the API.
            shown: the kubelet's UIDs of the pods that the API showed before ``List``.
            uids_seen: returns the UIDs that pods with a name had, in the watch's order.
        """
        self._read |= frozenset(names)
        found = find_confirmed(
            self.snapshot,
            self.known,
            self.last_call,
            identified=self._history.identified,
            names=self._read,
            shown_before_list=shown,
            uids_seen=uids_seen,
        )
        if not found <= self._confirmed:
            self._confirmed |= found
            self.snapshot = self.snapshot.with_confirmed(self._confirmed)

    def correct(self, checkpoint: Checkpoint) -> list[Correction]:
        """Correct our assignments by a newer checkpoint; return the wrong guesses.

        The sources stay those of the last observation, because its ``List`` is older and would
        contradict the checkpoint.
        """
        was = self.current
        found = self._correct(self.checkpoint or checkpoint, checkpoint)
        if self.current is not was:
            self.update_snapshot()
        return found

    def move_guess(self) -> Correction | None:
        """Move a guess to the pod of the last call, if it must have been for that; return it."""
        current = self.current
        pod = self.snapshot.pod(current.id) if current is not None else None
        if current is None or pod is None or pod.kubelet_id != self.last_call.pod:
            return None
        earlier = () if self._earlier is None else (self._earlier,)
        found = find_misplaced(pod, (*self._left, *earlier))
        if found is None:
            return None
        guessed, moved = found
        wrong = replace(moved, container=guessed.container)
        self._earlier = self._earlier and self._earlier.without(wrong)
        self._left = tuple(each.without(wrong) for each in self._left)
        self.current = current.with_assignment(moved)
        self.update_snapshot()
        right = ContainerRef(current.id, moved.container)
        return Correction(moved.resource, moved.ids, guessed, right)

    def drop_unconfirmed_guesses(self) -> None:
        """Drop guesses that neither checkpoint nor ``List`` shows, unless that is unavailable."""
        if self.listed is None:
            return
        served = self.served
        self.current = self.current and self.current.without_guesses()
        self._earlier = self._earlier and self._earlier.without_guesses()
        self.update_snapshot()
        for each in served:
            self._leave(each)

    def _correct(self, before: Checkpoint, now: Checkpoint) -> list[Correction]:
        if all(each.is_certain(self.known.by_uid(each.uid)) for each in self.served):
            return []
        current, earlier = self.current, self._earlier
        if current is None:
            return []
        entries, identified = self.listed or (), self._history.identified
        current = with_uid(
            current, before, now, entries=entries, pods=self.known, identified=identified
        )
        if earlier is not None:
            # The checkpoint may have been late for it (K33). Another pod with its name may be
            # listed by now.
            entries = [each for each in entries if earlier.is_shown_by(each)]
            self._earlier = with_uid(
                earlier, before, now, entries=entries, pods=self.known, identified=identified
            )
        correct = partial(
            correct_by_checkpoint,
            before=before,
            now=now,
            may_be_new=self._may_be_new,
            pods=self.known,
        )
        self.current, found = correct(current)
        if is_of_another_pod(found):
            self._plan = None
            self.current = self._correct_pod(current, self.current, found, now)
        if self._earlier is not None:  # its guess may be a part of what the current pod has got
            self._earlier, more = correct(self._earlier)
            found += more
        return found

    def _correct_pod(
        self,
        was: CurrentPod,
        now: CurrentPod,
        corrections: Sequence[Correction],
        checkpoint: Checkpoint,
    ) -> CurrentPod:
        """Apply that the pod *was* was guessed wrongly; return the current pod.

        *now* is what *corrections* have left of it.
        """
        proven = find_proven(was, corrections, self.listed or (), self.snapshot)
        self.last_call = self.last_call.corrected(proven)
        return as_proven(was, corrections, checkpoint, self.known) or now

    def _leave(self, pod: CurrentPod) -> None:
        """Keep the slots allocated to a pod that no container holds now."""
        left = find_left(pod, self.snapshot)
        if left.assignments and left not in self._left:
            self._left = (*self._left, left)
            self.update_snapshot()

    def _may_be_new(self, owner: CheckpointOwner, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether an entry of the checkpoint may be new (K29, K33)."""
        info = self.known.by_uid(owner.pod_uid)
        if info is None:
            return entry_hash(owner, resource, ids) not in self._history.checkpointed
        if self.listed is None:
            return not info.terminal
        return any(entry.key == info.id.key for entry in self.listed)

    def _remember(self) -> None:
        """Add the listed pods, and those whose slots were offered, to the history (R2)."""
        snapshot = self.snapshot
        checkpoint = self.checkpoint or Checkpoint()
        self._history = self._history.updated(snapshot, offered=self._offered).pruned(
            lambda uid: (
                uid in checkpoint.pods
                or self.known.by_uid(uid) is not None
                or snapshot.pod_by_uid(uid) is not None
            ),
            checkpoint.entries,
        )
        if snapshot.listing:  # if an unlisted name is listed again, it may be another pod
            listed = {each.uid for each in snapshot.listed_changing}
            self._confirmed &= snapshot.stable.by_uid.keys() | listed
            self._read &= {each.id.key for each in snapshot.listed_changing}
        self.last_call = self.last_call.forget_unlisted(snapshot)

    # --- the snapshot -------------------------------------------------------------------

    @property
    def served(self) -> tuple[CurrentPod, ...]:
        """The current pod, then the one before it."""
        return tuple(each for each in (self.current, self._earlier) if each is not None)

    def update_snapshot(self) -> None:
        """Build a new snapshot, unless it would be the same."""
        last = self.last_call
        context = SnapshotContext(
            self._history,
            self._confirmed,
            last_pod=last.pod if last.pod not in last.finished else None,
            finished=last.finished,
            offered=self._offered,
            refused=tuple(each.allocated for each in self._left),
            synced=self._synced,
        )
        sources = self.checkpoint, self.listed, self.known, self.served, context
        if sources != self._built_of:
            self._built_of = sources
            self.snapshot = build_snapshot(
                checkpoint=self.checkpoint or Checkpoint(),
                listed=self.listed,
                served=self.served,
                known=self.known,
                context=context,
                stable=self._stable,
            )
            self._history = self._history.with_ended(self.snapshot)

    def assume_free(self, resource: Resource, ids: frozenset[str]) -> None:
        """Build the snapshot as if the kubelet had freed the pods that still seem to hold *ids*.

        A listed pod that only the checkpoint shows with them is another than the entry's.
        """
        current = self.current.uid if self.current is not None else ""
        holders = (each for each in self.snapshot.changing if each.slots(resource) & ids)
        freed = {
            each.uid
            for each in holders
            if each.uid != current
            and (each.listed is None or (each.info is None and not each.shows_any(resource, ids)))
        }
        self._history = replace(self._history, freed=self._history.freed | freed)
        self._built_of = None  # it does not have the history
        self.update_snapshot()

    def set_last_call(self, last_call: LastCall) -> AllocationSnapshot:
        """Set the last call, and return the snapshot, which is rebuilt if that changes it.

        Pods that it shows to be rejected hold only the slots in ``List``. The reusable slots
        of the target's init containers may be offered to the target.
        """
        before, self.last_call = self.last_call, last_call
        if last_call.changes(self.snapshot, before, self.known):
            self.update_snapshot()
        return self.snapshot

    def has_ended(self, owner: CheckpointOwner, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether the pod of a checkpoint entry has ended; the entry may stay (K29)."""
        known, info = self.snapshot.pod_by_uid(owner.pod_uid), self.known.by_uid(owner.pod_uid)
        if info is None:  # a pod that the API has not shown may only seem to have ended
            is_old = entry_hash(owner, resource, ids) in self._history.checkpointed
            return is_old and (known is None or known.ended)
        return info.terminal or (known is not None and known.ended)

    # --- assignments --------------------------------------------------------------------

    def assign(
        self, target: Resolution, resource: Resource, ids: frozenset[str], *, allocated: bool
    ) -> None:
        """Assign slots to a container; :meth:`save` must be called before the response leaves.

        Allocated slots are added to the snapshot, which is rebuilt.
        """
        current = self.current
        if current is None or current.id != target.pod:
            found = self.snapshot.pod(target.pod)
            uid = found.uid if found is not None else target.pod.uid
            if current is not None and current.allocated:
                self._earlier = current
            current = CurrentPod(target.pod, uid)
        name = target.container.name
        self.current = current.with_assignment(
            Assignment(name, resource, ids, target.evidence, allocated)
        )
        self.assigned_so_far += 1
        if allocated:
            self.update_snapshot()

    def save(self) -> None:
        """Save the state for the next agent."""
        current = self.current
        if current is not None:
            current = replace(current, confirmed=current.uid in self._confirmed)
        self._store.save(
            self._encoder.encode(
                saved_state.SavedState(
                    self.kubelet, current, self.last_call, self._unproven, self._history.outlived
                )
            )
        )

    def refuse(self, pod: PodId | None) -> None:
        """Apply a refusal: the kubelet rejects the pod, and frees its slots."""
        self.last_call = self.last_call.refused(self.snapshot)
        current = self.current
        if current is not None and pod in {None, current.id}:
            allocated = tuple(each for each in current.assignments if each.allocated)
            if allocated:  # List may show them until the kubelet has rejected the pod
                self._left = (*self._left, replace(current, assignments=allocated))
            self.current = replace(current, assignments=())
        self._plan = None

    def find_assignment(
        self, resource: Resource, ids: frozenset[str], checkpoint: Checkpoint | None
    ) -> Assignment | None:
        """Return the last assignment, if an ``Allocate`` of *ids* carries it out or repeats it."""
        if self.current is None:
            return None
        may_repeat = not self.assigned_so_far
        return self.current.find_called(resource, ids, checkpoint, may_repeat=may_repeat)

    def prove(self, uid: str, container: str, resource: Resource) -> None:
        """Note that the checkpoint has this container with exactly the slots assigned to it."""
        if self.current is not None and self.current.uid == uid:
            self.current = self.current.proven(container, resource)

    def note_unproven(self, pod: PodId) -> None:
        """Save that a container of a pod starts, though the checkpoint may lack it (K33)."""
        found = self.snapshot.pod(pod)
        if found is not None and found.uid not in {"", *self._unproven}:
            there = (each for each in self._unproven if self.known.is_shown(each))
            self._unproven = frozenset({*there, found.uid})
            self.save()

    def find_evidence(self, pod: PodId, container: str, resource: Resource) -> Evidence:
        """Return the evidence for the slots that a container holds."""
        found = None
        if self.current is not None and self.current.id == pod:
            found = self.current.find_evidence(container, resource)
        return found or Evidence.RECORD

    # --- placement ----------------------------------------------------------------------

    def plan(self, pod: PodId) -> Plan | None:
        """Return the cards planned for the containers of *pod* that are not served yet."""
        return self._plan[1] if self._plan is not None and self._plan[0] == pod else None

    def keep_plan(self, pod: PodId, plan: Plan) -> None:
        """Keep the plan of one pod, since the kubelet admits one pod at a time (K1)."""
        self._plan = pod, plan

    def note_choice(self, ids: frozenset[str], container: ContainerRef | None) -> None:
        """Store by whose wishes *ids* were chosen; ``None`` if these were not known."""
        self._chosen_for.pop(ids, None)
        self._chosen_for[ids] = container
        if len(self._chosen_for) > _MOST_CHOICES:
            del self._chosen_for[next(iter(self._chosen_for))]

    def was_chosen_for_another(self, ids: frozenset[str], container: ContainerRef) -> bool:
        """Return whether *ids* were chosen without the wishes of this container's author."""
        return self._chosen_for.get(ids, container) != container
