"""What can be seen when a call comes in: the kubelet's record, then the API for what it lacks.

The kubelet and the API are asked without the lock; what they answer is read under it.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from functools import partial

from agent.allocator.model.pod_view import Key
from agent.allocator.model.podresources import MatchedPod, Snapshot
from agent.allocator.model.ports import DecisionLog, RecordSource
from agent.allocator.resolver.call_context import CallContext
from agent.allocator.resolver.pod_index import Observation
from agent.allocator.resolver.pod_lookup import PodReader
from agent.allocator.resolver.resolve import Ask, is_annotated, lacks
from agent.allocator.resolver.resolver import Resolver
from agent.errors import ResolutionError, Unavailable
from contract.resource import Resource

_MOST_FETCHES = 6

_Step = tuple[Callable[[Observation], list[Key]], bool]
"""Lists the pods to be read, and whether to read them though they were read a moment ago."""

WITNESS_WITHIN = 1.0
"""Seconds a preferred call or ``Allocate`` waits for the kubelet's record."""


class Observer:
    """Looks at kubelet and API on behalf of a resolver."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        record: RecordSource,
        reader: PodReader,
        decision_log: DecisionLog,
        lock: AbstractContextManager[object],
    ) -> None:
        """Look for *resolver*.

        Args:
            resolver: what is known so far.
            record: the kubelet's own record.
            reader: reads single pods from the API.
            decision_log: is told when the kubelet's record cannot be had.
            lock: guards *resolver*.
        """
        self._resolver = resolver
        self._pod_index = resolver.pod_index
        self._admissions = resolver.admissions
        self._record = record
        self._reader = reader
        self._decision_log = decision_log
        self._lock = lock

    def look(
        self,
        offered: AbstractSet[tuple[Resource, str]] = frozenset(),
        *,
        named: AbstractSet[tuple[Resource, str]] = frozenset(),
        ask: Ask | None = None,
    ) -> CallContext:
        """Ask the kubelet, then the API for the few pods it shows that we do not know enough of.

        Args:
            offered: held places that the kubelet offers for anybody in this call.
            named: places that it has chosen itself.
            ask: what somebody asks for, who has to be found; ``None`` if nobody does.
        """
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable as error:
            self._decision_log.podresources_unavailable(str(error))
            return CallContext(None, offered, named)
        deadline = self._reader.deadline(WITNESS_WITHIN)
        # A pod that has left the API is read anew each time: its name may have come back.
        steps: list[_Step] = [(self._unknown, False)]
        if ask is not None:
            unexplained = partial(self._unexplained, ask, snapshot)
            steps.insert(0, (self._returned, True))
            steps += [(self._unidentified, True), (self._doubtful, True), (unexplained, True)]
        read: set[Key] = set()
        coming = iter(steps)
        while True:
            with self._lock:
                names, again = self._next_to_read(coming, snapshot, read)
            if not names:
                break
            read.update(names)
            missing = self._reader.read(names, deadline=deadline, again=again)
            if missing is None:
                break  # List alone is enough to go on; the watch catches up later
            with self._lock:
                self._pod_index.alone(missing, snapshot)
        return CallContext(snapshot, offered, named)

    def _next_to_read(
        self, steps: Iterator[_Step], snapshot: Snapshot, read: AbstractSet[Key]
    ) -> tuple[list[Key], bool]:
        """Return what the first step that names any pods wants read, and whether again."""
        observation = self._resolver.observe(snapshot)
        for step, again in steps:
            names = [each for each in step(observation) if each not in read]
            if names:
                return names[:_MOST_FETCHES], again
        return [], False

    def look_again(self, context: CallContext, ask: Ask) -> None:
        """Read once more who may be meant, before a call is refused that nobody can be making.

        Args:
            context: what could be seen when the call came in.
            ask: what the call asks for.
        """
        if context.snapshot is not None:
            deadline = self._reader.deadline(WITNESS_WITHIN)
            with self._lock:
                names = self._meant(context.snapshot, ask, again=True)
            missing = self._reader.read(names, deadline=deadline, again=True)
            with self._lock:
                self._pod_index.alone(missing or (), context.snapshot)
        # The watch may not have told of the pod yet.
        self._reader.refresh(within=WITNESS_WITHIN)

    def _unknown(self, observation: Observation) -> list[Key]:
        """List the listed pods of which the API has told nothing, newcomers first."""
        fresh = {pod.key for pod in self._admissions.newcomers(observation.moving)}
        return sorted(self._pod_index.unknown(observation), key=lambda key: (key not in fresh, key))

    def _returned(self, observation: Observation) -> list[Key]:
        """List the pods of which the API has told nothing, only of another of the same name.

        The watch may be behind, and what was read a moment ago was read of the other.
        """
        strangers = {
            each.listed.key
            for each in observation.moving
            if each.view is None
            and not all(box.held.get(one) for box in each.listed.containers for one in Resource)
        }
        return sorted(key for key in strangers if self._pod_index.views_of(key))

    def _unidentified(self, observation: Observation) -> list[Key]:
        """List the pods that have left the API and lack something: another may have the name."""
        moving = observation.moving
        return sorted({each.listed.key for each in moving if not each.identified and lacks(each)})

    def _doubtful(self, observation: Observation) -> list[Key]:
        """List the pods that may not be what the API has told of them, newest first.

        Only one pod can be waiting (fact K3). Where ``List`` keeps rejected ones (K8) there may
        be more, for as long as the API has not told how they ended. And a pod that was served
        and shows nothing of it has been replaced by another of the same name.
        """
        waiting = sorted(
            (each.view.position, each.pod, self._was_served(each))
            for each in observation.moving
            if each.view is not None
            and each.pod not in self._admissions.rejected
            and lacks(each)
            and not any(each.listed.each_held())
        )
        replaced = [pod.key for _, pod, served in waiting if served]
        others = [pod.key for _, pod, _ in reversed(waiting)] if len(waiting) > 1 else []
        return list(dict.fromkeys(replaced + others))

    def _unexplained(self, ask: Ask, snapshot: Snapshot, observation: Observation) -> list[Key]:
        """List the pods that may be meant, where nobody who is still to be served asks for this.

        A pod that the kubelet has just begun to list is asking (K1, K3). If by what the API has
        told it cannot be, its name may have come back with other sizes. One that holds
        something and lacks the rest may have been rejected before a newer pod was listed (K21).
        """
        try:
            found = self._resolver.resolve_listed(ask, observation)
        except ResolutionError:
            return self._meant(snapshot, ask)
        if found.rivals:
            return [found.pod.key, *(each.pod.key for each in found.rivals)]
        fresh = self._admissions.newcomers(observation.moving)
        lacking = {each.pod for each in observation.moving if each.view is None or lacks(each)}
        if found.pod in self._admissions.rejected or (fresh & lacking and found.pod not in fresh):
            return self._meant(snapshot, ask)
        return []

    def _meant(self, snapshot: Snapshot, ask: Ask, *, again: bool = False) -> list[Key]:
        """List the listed pods that may be asking by another spec than is known, likeliest first.

        Names of ended pods come back; then those that the kubelet has begun to list since the
        last call, those that lack something, and those that hold nothing.
        """
        observation = self._resolver.observe(snapshot)
        fresh = self._admissions.newcomers(observation.moving)
        moving = [each for each in observation.moving if ask.owner in (None, each.pod)]
        ranked = sorted(
            (
                (
                    each.pod not in fresh,
                    each.pod in self._admissions.rejected,
                    any(each.listed.each_held()),
                    each.listed.key,
                )
                for each in moving
                if each.view is None or not each.view.terminal
            ),
        )
        newest = [key for old, *_, key in ranked if not old]
        others = [key for old, *_, key in ranked if old]
        ended = self._pod_index.ended(observation, again=again)
        return list(dict.fromkeys([*newest, *ended, *others, *self._pod_index.silent()]))[
            :_MOST_FETCHES
        ]

    def _was_served(self, each: MatchedPod) -> bool:
        """Return whether a listed pod had everything, by its annotation or by the ledger."""
        if each.view is not None and is_annotated(each.view):
            return True
        return any(
            held is not None and held.proven
            for ref in self._resolver.ledger.pod_refs(each.pod)
            for held in (self._resolver.ledger.holding(ref, resource) for resource in Resource)
        )
