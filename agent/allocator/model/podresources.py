"""What the kubelet's ``List`` shows, as plain data, and which pods its entries are."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.allocator.model.pod_view import Key, PodId, PodView
from contract.demand import ContainerKind
from contract.resource import Resource, count_of


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """One container of a listed pod, with the device IDs it holds (added up, fact K16)."""

    name: str
    held: Mapping[Resource, frozenset[str]]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """One entry of ``List``; ordinary init containers are missing from it (fact K4)."""

    namespace: str
    name: str
    containers: tuple[ListedContainer, ...]

    @property
    def key(self) -> Key:
        """Namespace and name; ``List`` tells no UID."""
        return self.namespace, self.name

    def may_be(self, view: PodView) -> bool:
        """Return whether the entry has just the containers that it must have if it is *view*.

        Restartable init containers are listed by newer kubelets only.
        """
        names = {each.name for each in self.containers}
        if view.mains and not view.mains <= names <= view.mains | view.sidecars:
            return False
        return all(
            each.name in names
            for each in view.demand.containers
            if each.kind is not ContainerKind.INIT
        )

    def contradicts(self, view: PodView) -> bool:
        """Return whether a container holds another count of a resource than it asks for."""
        return any(
            len(ids) != count_of(each.demand, resource)
            for each in view.demand.containers
            for resource, ids in self._held_by(each.name).items()
            if ids
        )

    def _held_by(self, container: str) -> Mapping[Resource, frozenset[str]]:
        for each in self.containers:
            if each.name == container:
                return each.held
        return {}

    def held(self, container: str, resource: Resource) -> frozenset[str]:
        """Return the IDs of *resource* that *container* holds."""
        return self._held_by(container).get(resource, frozenset())

    def all_held(self) -> frozenset[tuple[Resource, str]]:
        """Return everything any of its containers holds."""
        return frozenset(self.each_held())

    def each_held(self) -> Iterator[tuple[Resource, str]]:
        """Walk what its containers hold."""
        for container in self.containers:
            for resource, ids in container.held.items():
                for device_id in ids:
                    yield resource, device_id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One answer of ``List``."""

    pods: tuple[ListedPod, ...]


@dataclass(frozen=True, slots=True)
class MatchedPod:
    """A listed pod and which pod it is.

    Attributes:
        pod: which pod.
        listed: its entry.
        view: what the API tells, or told, of it; ``None`` when only the kubelet knows it.
        identified: whether *view* is known to be this pod's: where a pod has left the API, another
            of its name may have come that the API has not told of yet.
        earlier: pods that had the name before and have left the API, where it may be one of those.
    """

    pod: PodId
    listed: ListedPod
    view: PodView | None
    identified: bool = True
    earlier: tuple[PodView, ...] = ()


def match_entries(
    listed: Iterable[ListedPod],
    views_of: Callable[[Key], Sequence[PodView]],
    owners: Mapping[tuple[Resource, str], PodId],
) -> tuple[MatchedPod, ...]:
    """Find out which pods some entries are, among them all of one name or none.

    A name can be there twice: an old pod that is still stopping and its successor. The
    entry that holds devices is the pod they were given to; what is left over are the
    views not yet used, those asked to go last.

    Args:
        listed: the entries.
        views_of: the pods of a name that the API shows.
        owners: which pod each held device ID was given to, from the ledger.

    Returns:
        One entry per listed pod, sorted by pod.
    """
    entries: dict[Key, list[ListedPod]] = {}
    for each in listed:
        entries.setdefault(each.key, []).append(each)
    found: list[MatchedPod] = []
    for key, group in entries.items():
        views = sorted(
            views_of(key), key=lambda view: (view.terminal, view.deleting, view.position, view.id)
        )
        found += _identify_group(key, group, views, owners)
    return tuple(sorted(found, key=lambda each: each.pod))


def _identify_group(
    key: Key,
    entries: Sequence[ListedPod],
    views: Sequence[PodView],
    owners: Mapping[tuple[Resource, str], PodId],
) -> Iterable[MatchedPod]:
    if len(entries) == 1 and len(views) == 1:
        (entry,), (only,) = entries, views
        if entry.may_be(only) and not _stopping(key, entry, only, owners):
            return [MatchedPod(only.id, entry, only)]
    # Where a name is there twice, an entry is not the pod that asks for other counts. Alone it is:
    # its start has to be vetoed.
    twice = len(entries) > 1
    left = list(views)
    settled: list[MatchedPod] = []
    unsettled: list[ListedPod] = []
    for entry in entries:
        owner = _owner(key, entry, owners)
        if owner is None:
            unsettled.append(entry)
            continue
        view = next((each for each in left if each.id == owner), None)
        if view is not None and twice and entry.contradicts(view):
            unsettled.append(entry)
            continue
        if view is not None:
            left.remove(view)
        settled.append(MatchedPod(owner, entry, view))
    for entry in sorted(unsettled, key=lambda entry: not any(entry.each_held())):
        fitting = (each for each in left if entry.may_be(each))
        view = next((each for each in fitting if not (twice and entry.contradicts(each))), None)
        if view is not None:
            left.remove(view)
        settled.append(MatchedPod(view.id if view else PodId(*key, ""), entry, view))
    return settled


def _owner(
    key: Key, entry: ListedPod, owners: Mapping[tuple[Resource, str], PodId]
) -> PodId | None:
    """Return which pod of this name the entry's devices were given to, if one and known by UID."""
    given = {owners[each] for each in entry.all_held() if each in owners}
    named = {pod for pod in given if pod.key == key and pod.uid}
    return named.pop() if len(named) == 1 else None


def _stopping(
    key: Key,
    entry: ListedPod,
    view: PodView,
    owners: Mapping[tuple[Resource, str], PodId],
) -> bool:
    """Return whether the entry is an older pod whose successor of the same name is all we see."""
    held = next(entry.each_held(), None)
    if held is None or owners.get(held) == view.id:  # nearly always, and much faster
        return False
    owner = _owner(key, entry, owners)
    # A pod that runs has been admitted: were the entry an older one's, there would be two.
    return owner is not None and owner != view.id and not view.running
