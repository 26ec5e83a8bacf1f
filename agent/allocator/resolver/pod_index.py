"""The node's pods: the many at rest, and the few that something is happening to.

Every call of the kubelet brings its whole record, and nearly every pod in it is as it was in
the call before: served, proven and running. Those are *at rest* and are not looked at again
until their entry, what the API tells of them, or the ledger changes. What is left are the
pods *in motion*, and only among them can the one be that is asking.

The structure is not safe to share between threads: its owner locks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import attrgetter

from agent.allocator.model.pod_view import Key, PodId, PodView
from agent.allocator.model.podresources import MatchedPod, Snapshot, match_entries
from agent.allocator.resolver.departed_pods import DepartedPods
from contract.demand import ContainerKind
from contract.resource import Resource

_uid_of = attrgetter("id.uid")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one answer of ``List`` shows.

    Attributes:
        moving: the pods in motion, identified, sorted by pod.
        resting: the pods at rest.
        pods: all listed pods.
    """

    moving: tuple[MatchedPod, ...]
    resting: AbstractSet[PodId]
    pods: AbstractSet[PodId]


class PodIndex:
    """Tells pods at rest from pods in motion."""

    def __init__(self) -> None:
        """Know nobody."""
        self._views: Sequence[PodView] = ()
        self._by_uid: dict[str, PodView] = {}
        self._by_key: dict[Key, tuple[PodView, ...]] = {}
        self._live: set[PodId] = set()
        self._annotated: dict[PodId, PodView] = {}
        self._with_init: set[PodId] = set()
        self._unpublished: set[PodId] = set()
        self._asked: set[str] = set()  # UIDs of ended pods whose names were asked for again
        # By identity of the entry, which stays the same object while its bytes do.
        self._resting: dict[int, MatchedPod] = {}
        self._entry_of: dict[PodId, int] = {}
        self._last: tuple[Snapshot, Observation] | None = None
        self._moving: AbstractSet[PodId] = frozenset()
        self._departed = DepartedPods()
        self._alone: tuple[Snapshot | None, set[Key]] = (None, set())

    # --- what the API tells -------------------------------------------------------------

    def update(self, views: Sequence[PodView]) -> bool:
        """Apply the pods known from the API; tell whether anything has changed."""
        if views is self._views:
            return False
        self._last = None
        self._views = views
        fresh = dict(zip(map(_uid_of, views), views, strict=True))
        before = self._by_uid
        changed = [view for uid, view in fresh.items() if before.get(uid) is not view]
        gone = [before[uid] for uid in before.keys() - fresh.keys()]
        self._by_uid = fresh
        for view in gone:
            listed = view.id in self._entry_of or view.id in self._moving
            self._drop(view)
            self._departed.add(view, listed=listed)
        for view in changed:
            old = before.get(view.id.uid)
            if old is not None:
                self._drop(old)
            self._add(view)
        return True

    def view(self, pod: PodId) -> PodView | None:
        """Return what the API tells of *pod*, or told while it was there."""
        view = self._by_uid.get(pod.uid) or self._departed.get(pod.uid)
        return view if view is not None and view.id == pod else None

    def shown(self, pod: PodId) -> PodView | None:
        """Return what the API shows of *pod* now."""
        return None if self.has_departed(pod) else self.view(pod)

    def has_departed(self, pod: PodId) -> bool:
        """Return whether *pod* has left the API and is remembered."""
        return pod.uid in self._departed

    def alone(self, keys: Iterable[Key], snapshot: Snapshot) -> None:
        """Record that the API had no pod of these names: who is listed is the one remembered.

        Args:
            keys: the names.
            snapshot: what ``List`` showed; in the next, others may have come under them.
        """
        found = set(keys)
        if not found:
            return  # so that what was seen need not be looked at anew
        if self._alone[0] is not snapshot:
            self._alone = (snapshot, set())
        self._alone[1].update(found)
        self._last = None

    def by_runtime_uid(self, uid: str) -> list[PodId]:
        """Return the pods that the container runtime knows by *uid*."""
        return [view.id for view in self._views if (view.runtime_uid or view.id.uid) == uid]

    def views_of(self, key: Key) -> Sequence[PodView]:
        """Return the pods of a name that the API shows."""
        return self._by_key.get(key, ())

    @property
    def known(self) -> AbstractSet[PodId]:
        """Every pod that the API shows here."""
        return {view.id for view in self._views}

    @property
    def live(self) -> AbstractSet[PodId]:
        """The pods that the API shows bound here and not finished."""
        return self._live

    @property
    def unpublished(self) -> AbstractSet[PodId]:
        """Live pods that ask for GPUs and have no complete allocation annotation."""
        return self._unpublished

    @property
    def annotated(self) -> AbstractSet[PodId]:
        """Live pods that have an allocation annotation."""
        return self._annotated.keys()

    @property
    def hidden(self) -> list[PodView]:
        """Live pods that may hold more than the ledger says, by their allocation annotations.

        Ordinary init containers are never listed (K4), and a kubelet that has just restarted
        does not list the pods that it has not come to (K11).
        """
        found = set(self._annotated).difference(self._entry_of) | self._with_init
        return [view for pod, view in self._annotated.items() if pod in found] if found else []

    # --- what the kubelet tells ---------------------------------------------------------

    def unknown(self, observation: Observation) -> list[Key]:
        """List the listed pods of which the API has told nothing."""
        return sorted(
            {
                each.listed.key
                for each in observation.moving
                if each.view is None and not (each.pod.uid and self.views_of(each.listed.key))
            }
        )

    def ended(self, observation: Observation, *, again: bool = False) -> list[Key]:
        """List the listed pods that the API shows ended: names come back.

        Args:
            observation: what ``List`` shows.
            again: name also those that were named before.
        """
        found: set[Key] = set()
        for key in {each.listed.key for each in observation.moving}:
            views = self.views_of(key)
            uids = {view.id.uid for view in views}
            if (
                views
                and all(view.terminal for view in views)
                and (again or not uids <= self._asked)
            ):
                self._asked |= uids
                found.add(key)
        return sorted(found)

    def silent(self) -> list[Key]:
        """List the pods at rest that hold nothing, newest first."""
        found = [
            (each.view.position, each.listed.key)
            for each in self._resting.values()
            if each.view is not None and not any(each.listed.each_held())
        ]
        return [key for _, key in sorted(found, reverse=True)]

    def observe(
        self, snapshot: Snapshot, owners: Mapping[tuple[Resource, str], PodId]
    ) -> Observation:
        """Return which listed pods are in motion, and which pods those are.

        Args:
            snapshot: what ``List`` showed.
            owners: which pod each held device ID was given to, from the ledger.
        """
        if self._last is not None and self._last[0] is snapshot:
            return self._last[1]  # asked again, and nothing has happened since
        listed = set(map(id, snapshot.pods))
        for gone in self._resting.keys() - listed:
            self._invalidate(self._resting[gone].pod)
        moving = [entry for entry in snapshot.pods if id(entry) not in self._resting]
        # A name that comes back concerns the pod that had it: they are told apart together.
        keys = {entry.key for entry in moving}
        if len(listed) < len(snapshot.pods):  # entries of a name may be one and the same object
            counts = Counter(entry.key for entry in snapshot.pods)
            keys |= {key for key, count in counts.items() if count > 1}
        awake = [
            view.id for key in keys for view in self.views_of(key) if view.id in self._entry_of
        ]
        if awake:
            for pod in awake:
                self._invalidate(pod)
            moving = [entry for entry in snapshot.pods if id(entry) not in self._resting]
        found = match_entries(moving, self.views_of, owners)
        if self._departed:
            found = self._departed.recall(
                found, self._alone[1] if self._alone[0] is snapshot else ()
            )
            self._departed.let_go(found)
        # Sets of a dict and of sets take the hashes along: a node has hundreds of pods.
        resting = frozenset(self._entry_of)
        self._moving = {each.pod for each in found}
        observation = Observation(found, resting, resting | self._moving)
        self._last = (snapshot, observation)
        return observation

    def settle(self, served: Iterable[MatchedPod]) -> None:
        """Record that nothing more is to happen to these, as they are now.

        Only a pod of which the API tells, alone of its name, can be at rest.
        """
        self._last = None
        for each in served:
            alone = len(self.views_of(each.listed.key)) == 1
            if each.view is not None and alone and each.pod not in self._entry_of:
                self._resting[id(each.listed)] = each  # holds the entry, so that its id() stays
                self._entry_of[each.pod] = id(each.listed)

    def invalidate(self, pods: Iterable[PodId]) -> None:
        """Record that something happened to *pods*."""
        for pod in pods:
            self._last = None
            self._invalidate(pod)

    # --- inside ---------------------------------------------------------------------------

    def _invalidate(self, pod: PodId) -> None:
        entry = self._entry_of.pop(pod, None)
        if entry is not None:
            del self._resting[entry]

    def _add(self, view: PodView) -> None:
        self._departed.forget(view.id.uid)
        group = self._by_key.get(view.id.key, ())
        for other in group:
            self._invalidate(other.id)
        self._by_key[view.id.key] = (*group, view)
        if view.terminal:
            return
        self._live.add(view.id)
        containers = view.demand.containers
        if containers and not view.assigned:
            self._unpublished.add(view.id)
        if view.annotated:
            self._annotated[view.id] = view
        if any(each.kind is ContainerKind.INIT for each in containers):
            self._with_init.add(view.id)

    def _drop(self, view: PodView) -> None:
        self._invalidate(view.id)
        left = tuple(each for each in self._by_key[view.id.key] if each is not view)
        if left:
            self._by_key[view.id.key] = left
        else:
            del self._by_key[view.id.key]
        self._live.discard(view.id)
        self._annotated.pop(view.id, None)
        self._with_init.discard(view.id)
        self._unpublished.discard(view.id)
        self._asked.discard(view.id.uid)
