"""What can be seen when a call comes: checkpoint, ``List``, and the API for what they lack.

All are asked without the lock; what they show is applied under it. The checkpoint is read before
``List`` is asked: then what ``List`` lacks of it has been freed (R2).
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from agent.allocator.identity import kubelet_uid
from agent.allocator.interfaces import (
    Checkpoint,
    CheckpointSource,
    ContainerRef,
    DecisionLog,
    HeldSlots,
    ListedPod,
    PodResourcesSource,
    PodSource,
)
from agent.allocator.node_state import NodeState
from agent.allocator.resolver import LastCall
from agent.allocator.snapshot import AllocationSnapshot, Offered
from agent.errors import Unavailable
from placement.pods import Key

_MOST_FETCHES = 6
_MOST_ROUNDS = 3
_LOOKS_UNTIL_ASKED_AGAIN = 3
_LOOKS_AT_WATCH = 50
_WATCH_PAUSE_S = 0.01

LIST_WITHIN = 1.0
"""Seconds a call waits for ``List``."""


class KubeletObserver:
    """Observes kubelet and API, and applies what they show to a state, which makes the snapshot."""

    def __init__(  # noqa: PLR0913 -- the sources, by keyword
        self,
        *,
        state: NodeState,
        pods: PodSource,
        pod_resources: PodResourcesSource,
        checkpoint: CheckpointSource,
        kubelet: Callable[[], str],
        decision_log: DecisionLog,
        pause: Callable[[float], object],
    ) -> None:
        """Observe for *state*.

        Args:
            state: what is kept of the node.
            pods: the pods of this node.
            pod_resources: the kubelet's ``List``.
            checkpoint: the kubelet's checkpoint.
            kubelet: which instance of the kubelet is there.
            decision_log: takes corrections, and where ``List`` could not be had.
            pause: waits so many seconds.
        """
        self._state = state
        self._pods = pods
        self._pod_resources = pod_resources
        self._checkpoint = checkpoint
        self._kubelet = kubelet
        self._decision_log = decision_log
        self._pause = pause
        self._reader = PodReader(pods, pause=pause)
        self._assignments_then = 0
        self._quiet_looks = 0

    def detect_restart(self) -> None:
        """Apply which kubelet is there now, and what the API has shown by now."""
        instance, pods = self._kubelet(), self._pods.pods()
        with self._state as state:
            state.set_kubelet(instance)
            state.set_pods(pods, synced=self._pods.is_synced())

    def may_have_changed(self) -> bool:
        """Return whether a look may show something new: cheaper than to ask for ``List``."""
        checkpoint, pods = self.read_checkpoint(), self._pods.pods()
        with self._state as state:
            state.set_pods(pods, synced=self._pods.is_synced())
            return (
                state.assigned_so_far != self._assignments_then
                or checkpoint is not state.checkpoint
                or state.has_ended_holder()
            )

    def observe(self) -> None:
        """See what there is, where no call has come.

        If none has since the last look, ``List`` shows all that was assigned. What the agent before
        has assigned may never have arrived: then the call is asked again soon.
        """
        with self._state as state:
            quiet = state.assigned_so_far == self._assignments_then
            self._quiet_looks = self._quiet_looks + 1 if quiet else 0
            self._assignments_then = state.assigned_so_far
            enough = 1 if state.assigned_so_far else _LOOKS_UNTIL_ASKED_AGAIN
        self._apply(
            self.read_checkpoint(), self.ask_list(), {}, caught_up=self._quiet_looks >= enough
        )

    def observe_for_call(self, offered: Offered) -> None:
        """See which pods a call may be for; read new ones, and unknown ones, from the API.

        Args:
            offered: what the kubelet offers in this call.
        """
        with self._state as state:
            shown = state.known.uids
        checkpoint, listed = self.read_checkpoint(), self.ask_list()
        self._apply(checkpoint, listed, offered)
        deadline = self._reader.deadline(LIST_WITHIN)
        read: set[Key] = set()
        for _ in range(_MOST_ROUNDS if listed is not None else 0):
            with self._state as state:
                names = _find_unread(state.snapshot, state.last_call, read)
            if not names:
                break
            read.update(names)
            if len(names) > _MOST_FETCHES:  # none is known: one answer for all
                in_time = self._reader.refresh(within=LIST_WITHIN)
            else:
                in_time = self._reader.read(names, deadline=deadline)
            if not in_time:
                break  # List alone is enough to go on; the watch catches up later
            self._wait_for_watch(names, shown)
            self._apply(checkpoint, listed, offered, read=names, shown=shown)

    def _wait_for_watch(self, names: Collection[Key], shown: AbstractSet[str]) -> None:
        """Wait until the watch has shown the new pods, too: it is late on a busy node."""
        for _ in range(_LOOKS_AT_WATCH):
            come = [each for each in self._pods.pods() if each.id.key in names]
            if all(
                kubelet_uid(each) in shown or each.id.uid in self._pods.uids_seen(each.id.key)
                for each in come
            ):
                return
            self._pause(_WATCH_PAUSE_S)

    def observe_after_relist(self, offered: Offered) -> None:
        """List the pods of the node, before a call is refused that no container can be making."""
        self._reader.refresh(within=LIST_WITHIN)
        with self._state as state:
            state.drop_unconfirmed_guesses()
        self._apply(self.read_checkpoint(), self.ask_list(), offered)

    def read_checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint; ``None`` where it cannot be read, which its reader logs."""
        try:
            return self._checkpoint.read()
        except Unavailable:
            return None

    def ask_list(self) -> Sequence[ListedPod] | None:
        """Ask for ``List``; ``None`` where it cannot be had, which is logged."""
        try:
            return self._pod_resources.list(within=LIST_WITHIN)
        except Unavailable as error:
            self._decision_log.podresources_unavailable(str(error))
            return None

    def find_listed(self, ref: ContainerRef) -> HeldSlots | None:
        """Ask ``List`` what a container holds; ``None`` where it does not show it (K4, K8)."""
        found = [
            container.held
            for pod in self.ask_list() or ()
            for container in pod.containers
            if (pod.key, container.name) == (ref.pod.key, ref.container)
        ]
        return found[0] if len(found) == 1 else None

    def _apply(  # noqa: PLR0913 -- what one look has shown
        self,
        checkpoint: Checkpoint | None,
        listed: Sequence[ListedPod] | None,
        offered: Offered,
        *,
        caught_up: bool = True,
        read: Collection[Key] = (),
        shown: AbstractSet[str] = frozenset(),
    ) -> None:
        with self._state as state:
            state.set_pods(self._pods.pods(), synced=self._pods.is_synced())
            corrections = state.apply_observation(
                checkpoint, listed, offered=offered, caught_up=caught_up
            )
            state.confirm(read, shown, self._pods.uids_seen)
        for each in corrections:
            self._decision_log.corrected(each)


def _find_unread(
    snapshot: AllocationSnapshot, last_call: LastCall, read: AbstractSet[Key]
) -> Sequence[Key]:
    """Return the names of the pods, less those *read*, of which the API may show more.

    These are new ones, the pod of the last call if it has not shown that, and pods that have
    nothing any more: each of them may be another pod of its name.
    """
    new, unknown = list[Key](), list[Key]()
    for each in snapshot.listed_changing:
        terminal = each.info is not None and each.info.terminal
        if (each.lacks or terminal) and last_call.is_new(each, snapshot):
            new.append(each.id.key)
        elif (each.info is None and last_call.is_target(each)) or (
            each.ended and not each.shows and not terminal
        ):
            unknown.append(each.id.key)
    return [each for each in dict.fromkeys((*new, *unknown)) if each not in read]


_PAUSES = (0.05, 0.2)
# After so many failures in a row the API server is unreachable, and another try a waste of time.
_UNREACHABLE_AFTER = 4


class PodReader:
    """Reads pods within a deadline while a call waits. Safe to share between threads."""

    def __init__(
        self,
        pods: PodSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Read from *pods*; *clock* and *pause* are in seconds."""
        self._pods = pods
        self._clock = clock
        self._pause = pause
        self._failures = 0

    def deadline(self, within: float) -> float:
        """Return the time *within* seconds from now."""
        return self._clock() + within

    def read(self, keys: Iterable[Key], *, deadline: float) -> bool:
        """Ask for pods, one after the other; return whether all responses came in time."""
        return all(self._read(key, deadline) for key in keys)

    def _read(self, key: Key, deadline: float) -> bool:
        pauses = _PAUSES if self._failures < _UNREACHABLE_AFTER else _PAUSES[:1]
        for pause in (*pauses, None):
            left = deadline - self._clock()
            if left <= 0:
                break
            try:
                # So that a response that never comes leaves time for another try.
                within = left if pause is None else left / 2
                self._pods.fetch(*key, within=within)
            except Unavailable:
                self._failures += 1
                if pause is not None:
                    self._pause(min(pause, max(deadline - self._clock(), 0)))
            else:
                self._failures = 0
                return True
        return False

    def refresh(self, *, within: float) -> bool:
        """List the node's pods once, in so many seconds; return whether that could be had."""
        try:
            self._pods.refresh(within=within)
        except Unavailable:
            self._failures += 1
            return False
        self._failures = 0
        return True
