"""Observes checkpoint and ``List``, and requests pods from the API that are not known yet.

All are read without the lock; the results are applied under it. The checkpoint is read before
``List``: so slots that only the checkpoint has were freed in between (R2).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from agent.allocator.identity import kubelet_uid
from agent.allocator.interfaces import (
    Checkpoint,
    CheckpointSource,
    DecisionLog,
    HeldSlots,
    ListedContainer,
    ListedPod,
    PodResourcesSource,
    PodSource,
)
from agent.allocator.node_state import NodeState
from agent.allocator.resolver import LastCall
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import Offered
from agent.errors import KubeletReplaced, Unavailable
from agent.holdings.holding import ContainerRef
from contract.resource import Resource
from placement.pods import Key

_MOST_FETCHES = 6
_MOST_ROUNDS = 3
_OBSERVATIONS_AFTER_START = 3
_MOST_WATCH_CHECKS = 50
_WATCH_PAUSE_S = 0.01

LIST_WITHIN = 1.0
"""Seconds that a call waits for ``List``."""


@dataclass(eq=False, kw_only=True)
class KubeletObserver:
    """Observes kubelet and API, and applies the results to the state, which builds the snapshot.

    Attributes:
        kubelet: returns the name of the running kubelet instance.
        clock: returns seconds.
        pause: waits so many seconds.
    """

    state: NodeState
    pods: PodSource
    pod_resources: PodResourcesSource
    checkpoint: CheckpointSource
    kubelet: Callable[[], str]
    decision_log: DecisionLog
    clock: Callable[[], float]
    pause: Callable[[float], object]
    _reader: "PodReader" = field(init=False)
    _assignments_before: int = field(default=0, init=False)
    _quiet_observations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Make the reader; nothing is read yet."""
        self._reader = PodReader(self.pods, self.clock, self.pause)

    def detect_restart(self) -> str:
        """Apply the running kubelet instance, and the pods that the API shows now; return it."""
        instance, pods = self.kubelet(), self.pods.pods()
        with self.state as state:
            state.set_pods(pods, synced=self.pods.is_synced())
            state.set_kubelet(instance)
        return instance

    def may_have_changed(self) -> bool:
        """Return whether an observation may show a change; this is cheaper than ``List``."""
        checkpoint, pods = self.read_checkpoint(), self.pods.pods()
        with self.state as state:
            state.set_pods(pods, synced=self.pods.is_synced())
            return (
                state.assigned_so_far != self._assignments_before
                or checkpoint is not state.checkpoint
                or state.snapshot.has_ended_holder(state.known)
            )

    def observe(self) -> None:
        """Observe without a call.

        If there was no assignment since the last observation, ``List`` shows all assignments. After
        a start more observations are needed: a response of the earlier agent may have been lost,
        and then its call is repeated soon. Nothing is applied if the kubelet is replaced meanwhile.
        """
        with self.state as state:
            kubelet = state.kubelet
            quiet = state.assigned_so_far == self._assignments_before
            self._quiet_observations = self._quiet_observations + 1 if quiet else 0
            self._assignments_before = state.assigned_so_far
            enough = 1 if state.assigned_so_far else _OBSERVATIONS_AFTER_START
        with suppress(KubeletReplaced):
            self._apply(
                kubelet,
                self.read_checkpoint(),
                self.read_list(),
                {},
                caught_up=self._quiet_observations >= enough,
            )

    def observe_for_call(self, kubelet: str, offered: Offered) -> None:
        """Observe for a call, and read pods from the API that are new or not known yet.

        *offered* are the slots that the kubelet offers in this call.

        Raises:
            KubeletReplaced: another kubelet runs now.
        """
        with self.state as state:
            shown = state.known.uids
        checkpoint, listed = self.read_checkpoint(), self.read_list()
        self._apply(kubelet, checkpoint, listed, offered)
        deadline = self._reader.deadline(LIST_WITHIN)
        read: set[Key] = set()
        for _ in range(_MOST_ROUNDS if listed is not None else 0):
            with self.state as state:
                names = _find_unread(state.snapshot, state.last_call, read)
            if not names:
                break
            read.update(names)
            if len(names) > _MOST_FETCHES:  # one list instead of many requests
                in_time = self._reader.refresh(within=LIST_WITHIN)
            else:
                in_time = self._reader.read(names, deadline=deadline)
            if not in_time:
                break  # continue with List only; the watch catches up later
            self._wait_for_watch(names, shown)
            self._apply(kubelet, checkpoint, listed, offered, read=names, shown=shown)

    def _wait_for_watch(self, names: Collection[Key], shown: AbstractSet[str]) -> None:
        """Wait until the watch has reported the new pods, too: on a busy node it is late."""
        for _ in range(_MOST_WATCH_CHECKS):
            cached = [each for each in self.pods.pods() if each.id.key in names]
            if all(
                kubelet_uid(each) in shown or each.id.uid in self.pods.uids_seen(each.id.key)
                for each in cached
            ):
                return
            self.pause(_WATCH_PAUSE_S)

    def observe_after_relist(self, kubelet: str, offered: Offered) -> None:
        """List the node's pods and observe, before a call without matching container is refused.

        Raises:
            KubeletReplaced: another kubelet runs now than the one that made the call.
        """
        self._reader.refresh(within=LIST_WITHIN)
        with self.state.of_kubelet(kubelet) as state:
            moved = state.move_guess()
            if moved is None:
                state.drop_unconfirmed_guesses()
        if moved is not None:
            self.decision_log.corrected(moved)
        self._apply(kubelet, self.read_checkpoint(), self.read_list(), offered)

    def read_checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint; ``None`` if it cannot be read. The reader logs the reason."""
        try:
            return self.checkpoint.read()
        except Unavailable:
            return None

    def read_list(self) -> Sequence[ListedPod] | None:
        """Read ``List``; ``None`` if it is unavailable, which is reported."""
        try:
            return self.pod_resources.list(within=LIST_WITHIN)
        except Unavailable as error:
            self.decision_log.podresources_unavailable(str(error))
            return None

    def find_listed(self, ref: ContainerRef) -> HeldSlots | None:
        """Return the slots of a container in ``List``; ``None`` if it is not shown (K4, K8)."""
        found = [
            container.held
            for pod, container in self._walk_list()
            if (ref.pod.key, ref.container) == (pod.key, container.name)
        ]
        return found[0] if len(found) == 1 else None

    def find_holders(
        self, resource: Resource, ids: frozenset[str]
    ) -> list[tuple[ListedPod, ListedContainer]]:
        """Return the containers that ``List`` shows with *ids*, each with its pod's entry."""
        return [each for each in self._walk_list() if each[1].held.get(resource) == ids]

    def _walk_list(self) -> Iterator[tuple[ListedPod, ListedContainer]]:
        for pod in self.read_list() or ():
            for container in pod.containers:
                yield pod, container

    def _apply(  # noqa: PLR0913 -- the results of one observation
        self,
        kubelet: str | None,
        checkpoint: Checkpoint | None,
        listed: Sequence[ListedPod] | None,
        offered: Offered,
        *,
        caught_up: bool = True,
        read: Collection[Key] = (),
        shown: AbstractSet[str] = frozenset(),
    ) -> None:
        if kubelet is not None and self.kubelet() != kubelet:  # List may be the next kubelet's
            raise KubeletReplaced("another kubelet runs now")
        with self.state.of_kubelet(kubelet) as state:
            state.set_pods(self.pods.pods(), synced=self.pods.is_synced())
            corrections = state.apply_observation(
                checkpoint, listed, offered=offered, caught_up=caught_up
            )
            state.confirm(read, shown, self.pods.uids_seen)
        for each in corrections:
            self.decision_log.corrected(each)


def _find_unread(
    snapshot: AllocationSnapshot, last_call: LastCall, read: AbstractSet[Key]
) -> Sequence[Key]:
    """Return the names of pods to read from the API, except those in *read*.

    These are new pods, the pod of the last call if the API has not shown it, and ended pods that
    show no devices: each of these entries may be another pod with that name.
    """
    new, unknown = list[Key](), list[Key]()
    for each in snapshot.listed_changing:
        terminal = each.info is not None and each.info.terminal
        if (each.lacks or terminal) and last_call.is_new(each, snapshot):
            new.append(each.id.key)
        elif (each.info is None and last_call.is_target(each)) or (
            each.ended and not each.shows_devices and not terminal
        ):
            unknown.append(each.id.key)
    return [each for each in dict.fromkeys((*new, *unknown)) if each not in read]


_PAUSES = (0.05, 0.2)
# After so many failures in a row the API server counts as unreachable, and there is only one retry.
_UNREACHABLE_AFTER = 4


class PodReader:
    """Reads pods within a deadline while a call waits. Safe to share between threads."""

    def __init__(
        self, pods: PodSource, clock: Callable[[], float], pause: Callable[[float], object]
    ) -> None:
        self._pods = pods
        self._clock = clock
        self._pause = pause
        self._failures = 0

    def deadline(self, within: float) -> float:
        """Return the time *within* seconds from now."""
        return self._clock() + within

    def read(self, keys: Iterable[Key], *, deadline: float) -> bool:
        """Get pods, one after the other; return whether all responses came in time."""
        return all(self._read(key, deadline) for key in keys)

    def _read(self, key: Key, deadline: float) -> bool:
        pauses = _PAUSES if self._failures < _UNREACHABLE_AFTER else _PAUSES[:1]
        for pause in (*pauses, None):
            left = deadline - self._clock()
            if left <= 0:
                break
            try:
                # Leave time for another try if there is no response.
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
        """List the node's pods once *within* so many seconds; return whether that succeeded."""
        try:
            self._pods.refresh(within=within)
        except Unavailable:
            self._failures += 1
            return False
        self._failures = 0
        return True
