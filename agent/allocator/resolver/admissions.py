"""Which listed pods the kubelet is done with: their admission is over, whatever they lack. Pure.

The kubelet admits one pod at a time (fact K1) and lists a pod when its admission begins (K3). So
once a pod appears in ``List``, the admission of every pod that was there before is over: answered,
or rejected without a word to us. Where ``List`` keeps rejected pods (K8), some with what they had
got (K21), this is what tells them from the one that is asking.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from operator import attrgetter

from agent.allocator.model.ledger_copy import Knowledge
from agent.allocator.model.pod_view import Key, PodId
from agent.allocator.model.podresources import MatchedPod, Snapshot
from agent.allocator.resolver.pod_index import Observation
from agent.allocator.resolver.resolve import AdmissionHistory, lacks

_key_of = attrgetter("namespace", "name")  # as ListedPod.key, of hundreds


class Admissions:
    """What one kubelet has done with the pods that it lists."""

    def __init__(self) -> None:
        """Know of no admission."""
        self._there_at_start: frozenset[PodId] = frozenset()
        self.forget()

    def forget(self) -> None:
        """Forget everything: a kubelet that has restarted admits every pod again."""
        self._rejected: frozenset[PodId] = frozenset()
        self._admission_over: frozenset[PodId] = frozenset()
        self._refused: set[PodId] = set()
        self._answered: set[PodId] = set()
        self._lacking_last: frozenset[PodId] = frozenset()
        self._rejected_by_last: frozenset[PodId] = frozenset()  # when the last call was settled
        self._last_snapshot: Snapshot | None = None
        self._last_keys: frozenset[Key] | None = frozenset()
        self._inherited = Knowledge()  # what a predecessor told last

    @property
    def rejected(self) -> frozenset[PodId]:
        """Pods that the kubelet has rejected, as far as can be told: it may be a wrong guess."""
        return self._rejected

    @property
    def answered(self) -> AbstractSet[PodId]:
        """Pods for which this kubelet was answered."""
        return self._answered

    def history(self, listed: Iterable[MatchedPod]) -> AdmissionHistory:
        """Return what is known of the admissions before the next call.

        Args:
            listed: the pods in motion, as ``List`` shows them in that call.
        """
        return AdmissionHistory(
            self._rejected,
            self._admission_over,
            frozenset(self._refused),
            self.newcomers(listed),
            self._there_at_start,
        )

    def add_there_at_start(self, pods: AbstractSet[PodId]) -> None:
        """Record that *pods* were there when the agent started."""
        self._there_at_start |= pods

    def newcomers(self, listed: Iterable[MatchedPod]) -> frozenset[PodId]:
        """Return the pods that were not listed when the last call was settled."""
        keys = self._last_keys
        if keys is None:
            before = self._last_snapshot
            keys = frozenset(map(_key_of, before.pods)) if before else frozenset()
            self._last_keys = keys
        return frozenset(each.pod for each in listed if each.listed.key not in keys)

    def has_come(self, pod: PodId, snapshot: Snapshot) -> bool:
        """Return whether *pod*, which is asking, was not listed when the last call was settled.

        The kubelet lists a pod when its admission begins (K3): where a name is listed more often
        than it was, the newest of that name has come.

        Args:
            pod: the pod.
            snapshot: what ``List`` shows in this call.
        """
        before = self._last_snapshot
        if before is None:
            return True
        now, then = (
            sum(each.key == pod.key for each in found.pods) for found in (snapshot, before)
        )
        return now > then

    def was_another(self, pod: PodId, other: PodId) -> None:
        """Record that the entry that was taken for *pod* was that of *other*, of the same name."""
        self._rejected = _renamed(self._rejected, pod, other)
        self._admission_over = _renamed(self._admission_over, pod, other)
        self._lacking_last = _renamed(self._lacking_last, pod, other)
        self._rejected_by_last = _renamed(self._rejected_by_last, pod, other)

    def forget_unlisted(self, pods: AbstractSet[PodId], live: AbstractSet[PodId]) -> None:
        """Forget pods that are listed no more.

        Args:
            pods: the listed ones.
            live: the pods that the API shows bound here and not finished.
        """
        there = pods | live
        self._rejected &= pods
        self._admission_over &= pods
        self._answered &= there
        self._there_at_start &= there
        # A UID cannot come back, and a pod without one is known by its name alone.
        self._refused &= there

    def guessed_wrongly(self, pod: PodId) -> None:
        """Record that a pod was answered instead of another.

        If it was lacking while the other was served, it was rejected (K8).
        """
        self._rejected |= {pod} & self._lacking_last

    def gained(self, pods: Iterable[PodId]) -> None:
        """Record that *pods* hold more than was answered for them: a guess was wrong.

        Only the one that is being admitted gets anything (K1).
        """
        found = frozenset(pods)
        if len(found) == 1:
            self._rejected -= found - self._admission_over

    def reject(self, pods: Iterable[PodId]) -> None:
        """Record that the kubelet has rejected *pods*."""
        self._rejected |= frozenset(pods)

    def refuse(self, pod: PodId, *, certain: bool) -> None:
        """Record that a call made for *pod* is refused, which ends its admission.

        Args:
            pod: for which pod.
            certain: whether it is known that the pod was asking, not only guessed.
        """
        self._rejected |= {pod}
        if certain:
            self._refused.add(pod)

    @property
    def admission_over(self) -> frozenset[PodId]:
        """Pods whose admission is over, answered or not."""
        return self._admission_over

    @property
    def refused(self) -> frozenset[PodId]:
        """Pods whose calls were refused for certain."""
        return frozenset(self._refused)

    @property
    def there_at_start(self) -> frozenset[PodId]:
        """Pods of whose init containers nobody has seen all (K4)."""
        return self._there_at_start

    def inherit(self, known: Knowledge) -> None:
        """Take over what a predecessor knows of the same kubelet.

        It is told again and again: what has changed since it was told last is applied.

        Args:
            known: what it has told.
        """
        before, self._inherited = self._inherited, known
        self._rejected = (self._rejected - (before.rejected - known.rejected)) | (
            known.rejected - before.rejected
        )
        self._admission_over = (
            self._admission_over - (before.admission_over - known.admission_over)
        ) | (known.admission_over - before.admission_over)
        self._refused |= known.refused
        if known.there_at_start is not None:
            self._there_at_start &= known.there_at_start

    def disproved(self, pod: PodId) -> None:
        """Record that *pod* was not the one that was answered last, and nobody is shown to be."""
        self._rejected = (self._rejected - self._rejected_by_last) | {pod}
        self._rejected_by_last = frozenset()

    def answer(self, pod: PodId) -> None:
        """Record that a call made for *pod* is answered."""
        self._answered.add(pod)

    def settle(
        self, pod: PodId, observation: Observation | None, snapshot: Snapshot | None
    ) -> None:
        """Record that *pod* was found to be asking; all others that lacked something were not."""
        moving = observation.moving if observation is not None else ()
        self._lacking_last = frozenset(
            each.pod for each in moving if lacks(each) or each.view is None
        )
        before = self._rejected
        self._rejected = (self._rejected | self._lacking_last) - {pod}
        self._rejected_by_last = self._rejected - before
        newcomers = self.newcomers(moving)
        if observation is not None and pod in newcomers:
            # Those that lack nothing too: one that ends is shown without its devices for a moment.
            self._admission_over |= observation.pods - newcomers
        self._admission_over -= {pod}
        if snapshot is not None and snapshot is not self._last_snapshot:
            self._last_snapshot, self._last_keys = snapshot, None

    def settle_instead(self, pod: PodId) -> None:
        """Record that *pod* is the one that is answered, not the one just found to be asking.

        Args:
            pod: another that may have been asking.
        """
        self._rejected = (self._rejected | self._lacking_last) - {pod}
        self._admission_over -= {pod}


def _renamed(pods: frozenset[PodId], pod: PodId, other: PodId) -> frozenset[PodId]:
    return (pods - {pod}) | {other} if pod in pods else pods
