"""Which pod each entry of ``List`` is (R5): it has names, and no UIDs. Pure.

An entry that shows slots is the pod that has them: first by our own assignments to the current pod,
then by the checkpoint, where the entry of an ended pod may show the same (K29). An entry that shows
nothing is a pod of its name, the likeliest one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from agent.allocator.current_pod import CurrentPod
from agent.allocator.interfaces import Checkpoint, ListedPod
from placement.pods import AdmissionRank, Key, PodId, PodInfo

_MOST_DEPARTED = 512


def kubelet_uid(info: PodInfo) -> str:
    """Return the UID by which the kubelet knows a pod: a static one has another there (K34)."""
    return info.runtime_uid or info.id.uid


class KnownPods:
    """The node's pods as the API shows them, and those that left it and may still be listed.

    Never changed: :meth:`updated` returns another one.

    Attributes:
        shown: the pods that the API shows.
        uids: the kubelet's UIDs of these.
    """

    __slots__ = ("_by_key", "_by_uid", "_departed", "shown", "uids")

    def __init__(self, shown: Sequence[PodInfo] = (), departed: Iterable[PodInfo] = ()) -> None:
        """Know the pods that the API shows, and *departed* ones, the last that left last (K20)."""
        self.shown = shown
        self._by_uid = {kubelet_uid(each): each for each in shown}
        self.uids: AbstractSet[str] = self._by_uid.keys()
        left = {uid: each for each in departed if (uid := kubelet_uid(each)) not in self._by_uid}
        self._departed = dict(list(left.items())[-_MOST_DEPARTED:])
        self._by_key: dict[Key, list[PodInfo]] = {}
        for each in (*shown, *reversed(self._departed.values())):
            self._by_key.setdefault(each.id.key, []).append(each)

    def updated(self, shown: Sequence[PodInfo]) -> "KnownPods":
        """Return this with the pods that the API shows now; itself where they are the same."""
        if shown is self.shown or shown == self.shown:
            return self
        return KnownPods(shown, (*self._departed.values(), *self.shown))

    def of_name(self, key: Key) -> Sequence[PodInfo]:
        """Return the pods of a name: those that the API shows, then those that have left it."""
        return self._by_key.get(key, ())

    def by_uid(self, uid: str) -> PodInfo | None:
        """Return the pod that the kubelet knows by a UID."""
        return self._by_uid.get(uid) or self._departed.get(uid)

    def is_shown(self, uid: str) -> bool:
        """Return whether the API shows the pod that the kubelet knows by a UID."""
        return uid in self._by_uid

    def has_ended(self, info: PodInfo) -> bool:
        """Return whether a pod has ended, or has left the API."""
        return info.terminal or kubelet_uid(info) not in self._by_uid

    def find(self, pod: PodId) -> PodInfo | None:
        """Return what is known of *pod*."""
        return next((each for each in self.of_name(pod.key) if each.id == pod), None)


@dataclass(frozen=True, slots=True)
class Identified:
    """An entry of ``List``, and which pod it is.

    Attributes:
        entry: the entry.
        uid: the kubelet's UID of its pod; empty where it is not known.
        info: what the API shows, or showed, of the pod.
        sure: it is this pod and no other of its name.
        sole: no other pod of its name can be this entry: once the API confirms it, it is sure.
    """

    entry: ListedPod
    uid: str
    info: PodInfo | None
    sure: bool
    sole: bool = True

    @property
    def id(self) -> PodId:
        """Which pod, as the API names it; its UID is the kubelet's where the API shows none."""
        return self.info.id if self.info is not None else PodId(*self.entry.key, self.uid)


def identify(  # noqa: PLR0913 -- the sources
    entries: Collection[ListedPod],
    checkpoint: Checkpoint,
    served: Sequence[CurrentPod],
    pods: KnownPods,
    *,
    used: AbstractSet[str] = frozenset(),
    confirmed: AbstractSet[str],
    met: AbstractSet[str] = frozenset(),
    last_pod: PodId | None,
) -> list[Identified]:
    """Find out which pods the entries are.

    Args:
        entries: what ``List`` shows.
        checkpoint: the checkpoint.
        served: the current pod, then the one before.
        pods: what the API shows of pods.
        used: the kubelet's UIDs of pods whose entries are known and not among these.
        confirmed: the kubelet's UIDs of pods that the API showed before and after ``List`` first
            showed their names.
        met: the kubelet's UIDs of pods that ``List`` has surely shown before: a new pod is none
            of them.
        last_pod: the pod of the last call, by the kubelet's UID.
    """
    entries = sorted(entries, key=lambda entry: entry.key)
    counts = Counter(entry.key for entry in entries)
    found: list[Identified] = []
    used = set(used)
    silent: list[ListedPod] = []
    for entry in entries:
        uid = _find_by_slots(entry, checkpoint, served, pods, used)
        if uid is None:
            silent.append(entry)
        else:
            used.add(uid)
            sure = uid in confirmed or uid in checkpoint.pods
            found.append(Identified(entry, uid, pods.by_uid(uid), sure))
    for entry in silent:
        alone = counts[entry.key] == 1
        ranked = sorted(
            _rank(entry, info, checkpoint, pods, last_pod)
            for info in pods.of_name(entry.key)
            if kubelet_uid(info) not in used
            and entry.may_be(info)
            and (alone or not entry.contradicts(info))
        )
        if ranked:
            first, *others = ranked
            uid = first.uid
            rivals = (not each.spent and each.uid not in met for each in others)
            sole = not first.spent and not first.departed and not any(rivals)
            sure = sole and uid in confirmed
        else:
            uid = _find_nameless(entry, served, used) if alone else ""
            sole = sure = True
        used.add(uid)
        found.append(Identified(entry, uid, pods.by_uid(uid), sure, sole))
    return found


def _find_by_slots(
    entry: ListedPod,
    checkpoint: Checkpoint,
    served: Sequence[CurrentPod],
    pods: KnownPods,
    used: AbstractSet[str],
) -> str | None:
    """Return the UID of the pod that has what an entry shows; ``None`` where it shows nothing."""
    for current in served:
        given = current.allocated if current.id.key == entry.key else {}
        for one in entry.containers:
            if any(given.get(one.name, {}).get(each) == ids for each, ids in one.held.items()):
                return current.uid
    uids: Counter[str] = Counter()
    for one in entry.containers:
        for resource, ids in one.held.items():
            owners = checkpoint.owners(resource, ids)
            uids.update({uid for uid, name in owners if name == one.name})
    fitting = [
        (count, info is not None, uid)
        for uid, count in uids.items()
        if uid not in used and ((info := pods.by_uid(uid)) is None or info.id.key == entry.key)
    ]
    return max(fitting)[2] if fitting else None


class _Rank(NamedTuple):
    """Sorts the likeliest pod of a name first, for an entry that shows nothing.

    Attributes:
        spent: it had something by the checkpoint: it has ended, and another of its name has come.
        departed: it has left the API, and is not the pod of the last call, which may still be
            admitted (K20).
        terminal: it has succeeded or failed.
        rank: where it stands in the order of admission.
        uid: the kubelet's UID of it.
    """

    spent: bool
    departed: bool
    terminal: bool
    rank: AdmissionRank
    uid: str


def _rank(
    entry: ListedPod, info: PodInfo, checkpoint: Checkpoint, pods: KnownPods, last_pod: PodId | None
) -> _Rank:
    uid = kubelet_uid(info)
    names = {one.name for one in entry.containers}
    spent = any(name in names for name in checkpoint.pods.get(uid, {}))
    departed = not pods.is_shown(uid) and last_pod != PodId(*info.id.key, uid)
    return _Rank(spent, departed, info.terminal, info.rank, uid)


def _find_nameless(entry: ListedPod, served: Sequence[CurrentPod], used: AbstractSet[str]) -> str:
    """Return the UID of a pod that the API does not show: the current pod, if it can be."""
    current = served[0] if served else None
    if current is not None and current.id.key == entry.key and current.uid not in used:
        return current.uid
    return ""
