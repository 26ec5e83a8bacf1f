"""Finds the pod of each entry of ``List``, which has names, but no UIDs (R5). Pure.

An entry with slots belongs to the pod that holds them: first by our own assignments to the current
pod, then by the checkpoint, in which the entry of an ended pod may have the same slots (K29). An
entry without slots belongs to the likeliest pod with its name.
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
    """Return a pod's UID in the kubelet; that of a static pod differs from the API's (K34)."""
    return info.runtime_uid or info.id.uid


class KnownPods:
    """The node's pods in the API, and deleted ones that ``List`` may still show.

    Immutable: :meth:`updated` returns a new object.

    Attributes:
        shown: the pods that the API shows.
        uids: their UIDs in the kubelet.
    """

    __slots__ = ("_by_key", "_by_uid", "_departed", "shown", "uids")

    def __init__(self, shown: Sequence[PodInfo] = (), departed: Iterable[PodInfo] = ()) -> None:
        """Store the pods that the API shows, and deleted ones, the newest last (K20)."""
        self.shown = shown
        self._by_uid = {kubelet_uid(each): each for each in shown}
        self.uids: AbstractSet[str] = self._by_uid.keys()
        left = {uid: each for each in departed if (uid := kubelet_uid(each)) not in self._by_uid}
        self._departed = dict(list(left.items())[-_MOST_DEPARTED:])
        self._by_key: dict[Key, list[PodInfo]] = {}
        for each in (*shown, *reversed(self._departed.values())):
            self._by_key.setdefault(each.id.key, []).append(each)

    def updated(self, shown: Sequence[PodInfo]) -> "KnownPods":
        """Return the object for the pods that the API shows now; itself if they are the same."""
        if shown is self.shown or shown == self.shown:
            return self
        return KnownPods(shown, (*self._departed.values(), *self.shown))

    def of_name(self, key: Key) -> Sequence[PodInfo]:
        """Return the pods with a name: first those that the API shows, then deleted ones."""
        return self._by_key.get(key, ())

    def by_uid(self, uid: str) -> PodInfo | None:
        """Return the pod with a UID of the kubelet."""
        return self._by_uid.get(uid) or self._departed.get(uid)

    def is_shown(self, uid: str) -> bool:
        """Return whether the API shows the pod with a UID of the kubelet."""
        return uid in self._by_uid

    def has_ended(self, info: PodInfo) -> bool:
        """Return whether a pod has ended, or was deleted from the API."""
        return info.terminal or kubelet_uid(info) not in self._by_uid

    def find(self, pod: PodId) -> PodInfo | None:
        """Return the pod with this ID."""
        return next((each for each in self.of_name(pod.key) if each.id == pod), None)


@dataclass(frozen=True, slots=True)
class MatchedEntry:
    """An entry of ``List``, and the likeliest pod of its name.

    Attributes:
        uid: the pod's UID in the kubelet; empty if it is not known.
        info: the pod in the API, possibly deleted by now.
        sure: whether the entry is certainly this pod's and not another one's with its name.
        sole: whether no other pod with its name can have this entry: once the API confirms the
            pod, it is sure.
        namesakes: less likely pods of this name, which may have the entry instead.
    """

    entry: ListedPod
    uid: str
    info: PodInfo | None
    sure: bool
    sole: bool = True
    namesakes: Sequence[PodInfo] = ()

    @property
    def id(self) -> PodId:
        """The pod's ID in the API, or with the kubelet's UID if the API does not show the pod."""
        return self.info.id if self.info is not None else PodId(*self.entry.key, self.uid)


def identify(  # noqa: PLR0913 -- the sources
    entries: Collection[ListedPod],
    checkpoint: Checkpoint,
    served: Sequence[CurrentPod],
    pods: KnownPods,
    *,
    used: AbstractSet[str] = frozenset(),
    confirmed: AbstractSet[str],
    identified: AbstractSet[str] = frozenset(),
    freed: AbstractSet[str] = frozenset(),
    last_pod: PodId | None,
) -> list[MatchedEntry]:
    """Find the pods of the entries. All UIDs here are the kubelet's.

    Args:
        entries: the entries of ``List``.
        checkpoint: the checkpoint.
        served: the current pod, then the one before it.
        pods: the pods that the API shows.
        used: UIDs of pods whose entries are known and not among *entries*.
        confirmed: UIDs of pods that the API showed before and after ``List`` first showed their
            names.
        identified: UIDs of pods that certainly had an entry before: none of them is a new pod.
        freed: UIDs of ended pods whose slots the kubelet has offered since then.
        last_pod: the pod of the last call.
    """
    entries = sorted(entries, key=lambda entry: entry.key)
    counts = Counter(entry.key for entry in entries)
    found: list[MatchedEntry] = []
    used = set(used)
    without_devices: list[ListedPod] = []
    for entry in entries:
        uid = _find_by_slots(entry, checkpoint, served, pods, used, freed)
        if uid is None:
            without_devices.append(entry)
        else:
            used.add(uid)
            sure = uid in confirmed or uid in checkpoint.pods
            found.append(MatchedEntry(entry, uid, pods.by_uid(uid), sure))
    for entry in without_devices:
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
            namesakes = [
                info
                for each in others
                if not each.had_devices
                and each.uid not in identified
                and (info := pods.by_uid(each.uid)) is not None
            ]
            sole = not first.had_devices and not first.departed and not namesakes
            sure = sole and uid in confirmed
        else:
            uid = _find_nameless(entry, served, pods, used) if alone else ""
            sole, sure, namesakes = True, True, []
        used.add(uid)
        found.append(MatchedEntry(entry, uid, pods.by_uid(uid), sure, sole, namesakes))
    return found


def _find_by_slots(  # noqa: PLR0913, PLR0917 -- the sources
    entry: ListedPod,
    checkpoint: Checkpoint,
    served: Sequence[CurrentPod],
    pods: KnownPods,
    used: AbstractSet[str],
    freed: AbstractSet[str],
) -> str | None:
    """Return the UID of the pod that holds the slots of an entry; ``None`` without slots."""
    for current in served:
        given = current.allocated if current.id.key == entry.key else {}
        for one in entry.containers:
            # Without the pod's UID its requests are not known: the container was a guess, too.
            slots = (given.get(one.name, {}),) if current.uid else given.values()
            if any(its.get(each) == ids for its in slots for each, ids in one.held.items()):
                return current.uid
    uids: Counter[str] = Counter()
    for one in entry.containers:
        for resource, ids in one.held.items():
            owners = checkpoint.owners(resource, ids)
            uids.update({uid for uid, name in owners if name == one.name})
    fitting = [
        (count, info is not None, uid)
        for uid, count in uids.items()
        if uid not in used
        and (uid not in freed if (info := pods.by_uid(uid)) is None else info.id.key == entry.key)
    ]
    return max(fitting)[2] if fitting else None


class _Rank(NamedTuple):
    """Sorts the pods with a name by likelihood, for an entry without slots.

    Attributes:
        had_devices: whether the checkpoint has devices of it: then it has ended, and the entry is
            that of another pod with its name.
        departed: whether it was deleted from the API, and is not the pod of the last call, which
            may still be admitted (K20).
        terminal: whether it has succeeded or failed.
        rank: its rank in the order of admission.
        uid: its UID in the kubelet.
    """

    had_devices: bool
    departed: bool
    terminal: bool
    rank: AdmissionRank
    uid: str


def _rank(
    entry: ListedPod, info: PodInfo, checkpoint: Checkpoint, pods: KnownPods, last_pod: PodId | None
) -> _Rank:
    uid = kubelet_uid(info)
    names = {one.name for one in entry.containers}
    had_devices = any(name in names for name in checkpoint.pods.get(uid, {}))
    departed = not pods.is_shown(uid) and last_pod != PodId(*info.id.key, uid)
    return _Rank(had_devices, departed, info.terminal, info.rank, uid)


def _find_nameless(
    entry: ListedPod, served: Sequence[CurrentPod], pods: KnownPods, used: AbstractSet[str]
) -> str:
    """Return the UID for an entry whose pod the API does not show: the current pod's, or none."""
    current = served[0] if served else None
    if current is None or current.id.key != entry.key or current.uid in used:
        return ""
    info = pods.by_uid(current.uid)
    return current.uid if info is None or entry.may_be(info) else ""
