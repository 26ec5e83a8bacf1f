"""What can be seen when a call comes: checkpoint, ``List``, and the API for what they lack.

All are asked without the lock; what they answer is applied under it. The checkpoint is read before
``List`` is asked: then what ``List`` lacks of it has been freed (R2).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.podresources import ListedPod
from agent.allocator.model.ports import CheckpointSource, DecisionLog, PodSource, RecordSource
from agent.allocator.node_state import NodeState
from agent.allocator.pod_reader import PodReader
from agent.allocator.pods import kubelet_uid
from agent.allocator.record import Offered
from agent.errors import Unavailable
from contract.resource import Resource
from placement.pods import Key

_MOST_FETCHES = 6
_MOST_ROUNDS = 3
_LOOKS_UNTIL_ASKED_AGAIN = 3
_LOOKS_AT_WATCH = 50
_WATCH_PAUSE_S = 0.01

LIST_WITHIN = 1.0
"""Seconds a call waits for ``List``."""


class Observer:
    """Looks at kubelet and API on behalf of a state."""

    def __init__(  # noqa: PLR0913 -- the sources, by keyword
        self,
        *,
        state: NodeState,
        pods: PodSource,
        record: RecordSource,
        checkpoint: CheckpointSource,
        kubelet: Callable[[], str],
        decision_log: DecisionLog,
        pause: Callable[[float], object],
    ) -> None:
        """Look for *state*.

        Args:
            state: what is remembered of the node.
            pods: the pods of this node.
            record: the kubelet's ``List``.
            checkpoint: the kubelet's checkpoint.
            kubelet: which life of the kubelet is there.
            decision_log: takes corrections, and where ``List`` could not be had.
            pause: waits so many seconds.
        """
        self._pause = pause
        self._state = state
        self._pods = pods
        self._record = record
        self._checkpoint = checkpoint
        self._kubelet = kubelet
        self._decision_log = decision_log
        self._reader = PodReader(pods)
        self._answers_at_look = 0
        self._quiet_looks = 0

    def meet_kubelet(self) -> None:
        """Apply which kubelet is there now, and what the API has told by now."""
        life, views = self._kubelet(), self._pods.views()
        with self._state as state:
            state.meet_kubelet(life)
            state.update(views, synced=self._pods.is_synced())

    def has_news(self) -> bool:
        """Return whether the next look may show something new: cheaper than to ask for ``List``."""
        written, views = self.written(), self._pods.views()
        with self._state as state:
            state.update(views, synced=self._pods.is_synced())
            return (
                state.answers != self._answers_at_look
                or written is not state.written
                or state.is_something_over()
            )

    def look(self) -> None:
        """See what there is, where no call has come.

        If none has since the last look, ``List`` shows all that was answered. What the agent before
        has answered may never have arrived: then the call is asked again soon.
        """
        with self._state as state:
            quiet = state.answers == self._answers_at_look
            self._quiet_looks = self._quiet_looks + 1 if quiet else 0
            self._answers_at_look = state.answers
            settled = self._quiet_looks >= (1 if state.answers else _LOOKS_UNTIL_ASKED_AGAIN)
        self._see(self.written(), self._list(), settled=settled)

    def look_for(self, offered: Offered) -> None:
        """Look which pods may be asking; read newcomers, and pods not known enough, from the API.

        Args:
            offered: what the kubelet offers in this call.
        """
        shown = {kubelet_uid(each) for each in self._pods.views()}
        written, listed = self.written(), self._list()
        self._see(written, listed, offered, settled=True)
        if listed is None:
            return
        deadline = self._reader.deadline(LIST_WITHIN)
        read: set[Key] = set()
        for _ in range(_MOST_ROUNDS):
            with self._state as state:
                names = _to_read(state, read)
            if not names:
                return
            read.update(names)
            if len(names) > _MOST_FETCHES:  # nobody is known: one answer for all
                if not self._reader.refresh(within=LIST_WITHIN):
                    return
            elif not self._reader.read(names, deadline=deadline):
                return  # List alone is enough to go on; the watch catches up later
            self._wait_for_watch(names, shown)
            self._see(written, listed, offered, settled=True, confirmed=(names, shown))

    def _wait_for_watch(self, names: Collection[Key], shown: AbstractSet[str]) -> None:
        """Wait until the watch has told of the newcomers, too: it is late on a busy node."""
        for _ in range(_LOOKS_AT_WATCH):
            come = [each for each in self._pods.views() if each.id.key in names]
            if all(
                kubelet_uid(each) in shown or each.id.uid in self._pods.told(each.id.key)
                for each in come
            ):
                return
            self._pause(_WATCH_PAUSE_S)

    def look_again(self, offered: Offered) -> None:
        """List the pods of the node, before a call is refused that no container can be making."""
        self._reader.refresh(within=LIST_WITHIN)
        with self._state as state:
            state.doubt_guesses()
        self._see(self.written(), self._list(), offered, settled=True)

    def written(self) -> Checkpoint | None:
        """Read the checkpoint; ``None`` where it cannot be read, which its reader logs."""
        try:
            return self._checkpoint.read()
        except Unavailable:
            return None

    def listed(self, ref: ContainerRef) -> Mapping[Resource, frozenset[str]] | None:
        """Ask ``List`` what a container holds; ``None`` where it does not tell (K4, K8)."""
        found = [
            container.held
            for pod in self._list() or ()
            for container in pod.containers
            if (pod.key, container.name) == (ref.pod.key, ref.container)
        ]
        return found[0] if len(found) == 1 else None

    def _list(self) -> Sequence[ListedPod] | None:
        try:
            return self._record.list(within=LIST_WITHIN)
        except Unavailable as error:
            self._decision_log.podresources_unavailable(str(error))
            return None

    def _see(
        self,
        written: Checkpoint | None,
        listed: Sequence[ListedPod] | None,
        offered: Offered | None = None,
        *,
        settled: bool,
        confirmed: tuple[Collection[Key], AbstractSet[str]] = ((), frozenset()),
    ) -> None:
        with self._state as state:
            state.update(self._pods.views(), synced=self._pods.is_synced())
            corrections = state.see(written, listed, offered=offered, settled=settled)
            state.confirm(*confirmed, self._pods.told)
        for each in corrections:
            self._decision_log.corrected(each)


def _to_read(state: NodeState, read: AbstractSet[Key]) -> list[Key]:
    """Return the names of the pods of which the API may tell more than is known.

    These are newcomers, an asker that it has not shown, and pods that have nothing any more: each
    of them may be another pod of its name.
    """
    turn, record = state.turn, state.record
    come = [
        each
        for each in record.listed_unsettled
        if (each.lacks or (each.view is not None and each.view.terminal))
        and turn.is_new(each, record)
    ]
    unknown = [
        each
        for each in record.listed_unsettled
        if (each.view is None and turn.is_asker(each))
        or (each.over and not each.shows and not (each.view is not None and each.view.terminal))
    ]
    names = dict.fromkeys(each.id.key for each in (*come, *unknown))
    return [each for each in names if each not in read]
