"""Which pod each entry of ``List`` is (R5): it tells names, and no UIDs. Pure.

An entry that shows places is the pod that has them: first by our own answers to the pod in service,
then by the checkpoint, where the entry of an ended pod may show the same (K29). An entry that shows
nothing is a pod of its name, the likeliest one.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from agent.allocator.in_service import InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.podresources import ListedPod
from agent.allocator.pods import Pods, kubelet_uid
from placement.pods import AdmissionRank, PodId, PodInfo


@dataclass(frozen=True, slots=True)
class Identified:
    """An entry of ``List``, and which pod it is.

    Attributes:
        entry: the entry.
        uid: the kubelet's UID of its pod; empty where nobody has told any.
        view: what the API shows, or showed, of the pod.
        sure: it is this pod and no other of its name.
    """

    entry: ListedPod
    uid: str
    view: PodInfo | None
    sure: bool

    @property
    def id(self) -> PodId:
        """Which pod, as the API names it; its UID is the kubelet's where the API shows none."""
        return self.view.id if self.view is not None else PodId(*self.entry.key, self.uid)


def identify(  # noqa: PLR0913 -- the sources
    entries: Collection[ListedPod],
    written: Checkpoint,
    services: Sequence[InService],
    pods: Pods,
    *,
    used: AbstractSet[str] = frozenset(),
    confirmed: AbstractSet[str],
    met: AbstractSet[str] = frozenset(),
    asker: PodId | None,
) -> list[Identified]:
    """Find out which pods the entries are.

    Args:
        entries: what ``List`` shows.
        written: the checkpoint.
        services: the pod in service, then the one before.
        pods: what the API shows of pods.
        used: the kubelet's UIDs of pods whose entries are known and not among these.
        confirmed: the kubelet's UIDs of pods that the API showed before and after ``List`` first
            showed their names.
        met: the kubelet's UIDs of pods that ``List`` has surely shown before: a newcomer is none
            of them.
        asker: the pod of the last call, by the kubelet's UID.
    """
    entries = sorted(entries, key=lambda entry: entry.key)
    counts = Counter(entry.key for entry in entries)
    found: list[Identified] = []
    used = set(used)
    silent: list[ListedPod] = []
    for entry in entries:
        uid = _by_places(entry, written, services, pods, used)
        if uid is None:
            silent.append(entry)
        else:
            used.add(uid)
            sure = uid in confirmed or uid in written.pods
            found.append(Identified(entry, uid, pods.by_uid(uid), sure))
    for entry in silent:
        views = [
            view
            for view in pods.of_name(entry.key)
            if kubelet_uid(view) not in used
            and entry.may_be(view)
            and not (counts[entry.key] > 1 and entry.contradicts(view))
        ]
        ranked = sorted(
            ((_rank(entry, view, written, pods, asker), view) for view in views),
            key=lambda each: each[0],
        )
        if ranked:
            rank, view = ranked[0]
            likeliest, sure = kubelet_uid(view), not any(rank[:2])
            rivals = (not one[0] and kubelet_uid(each) not in met for one, each in ranked[1:])
            sure = sure and likeliest in confirmed and not any(rivals)
        else:
            likeliest, sure = _nameless(entry, services, counts[entry.key], used), True
        used.add(likeliest)
        found.append(Identified(entry, likeliest, pods.by_uid(likeliest), sure))
    return found


def _by_places(
    entry: ListedPod,
    written: Checkpoint,
    services: Sequence[InService],
    pods: Pods,
    used: AbstractSet[str],
) -> str | None:
    """Return the UID of the pod that has what an entry shows; ``None`` where it shows nothing."""
    for service in services:
        given = service.given if service.pod.key == entry.key else {}
        for one in entry.containers:
            if any(given.get(one.name, {}).get(each) == ids for each, ids in one.held.items()):
                return service.uid
    uids: Counter[str] = Counter()
    for one in entry.containers:
        for resource, ids in one.held.items():
            owners = written.owners(resource, ids)
            uids.update({uid for uid, name in owners if name == one.name})
    fitting = [
        (count, view is not None, uid)
        for uid, count in uids.items()
        if uid not in used and ((view := pods.by_uid(uid)) is None or view.id.key == entry.key)
    ]
    return max(fitting)[2] if fitting else None


def _rank(
    entry: ListedPod, view: PodInfo, written: Checkpoint, pods: Pods, asker: PodId | None
) -> tuple[bool, bool, bool, AdmissionRank, str]:
    """Sort the likeliest pod of a name first, for an entry that shows nothing.

    One that had something by the checkpoint is over, and another of its name has come. One that has
    left the API may still be admitted (K20).
    """
    uid = kubelet_uid(view)
    names = {one.name for one in entry.containers}
    spent = any(name in names for name in written.pods.get(uid, {}))
    departed = not pods.is_shown(uid) and asker != PodId(*view.id.key, uid)
    return spent, departed, view.terminal, view.rank, uid


def _nameless(
    entry: ListedPod, services: Sequence[InService], count: int, used: AbstractSet[str]
) -> str:
    """Return the UID of a pod that the API does not show: the pod in service, if it can be."""
    for service in services[:1]:
        if service.pod.key == entry.key and count == 1 and service.uid not in used:
            return service.uid
    return ""
