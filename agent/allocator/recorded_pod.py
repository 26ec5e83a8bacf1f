"""One pod of the record, and the pods that are settled. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from agent.allocator.in_service import InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import Containers, Places
from agent.allocator.model.podresources import ListedPod
from agent.allocator.pods import Pods
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of
from placement.pods import AdmissionRank, Key, PodId, PodInfo

Shape: TypeAlias = str
"""Namespace and name of a listed pod, and the names of its containers, as one text."""

_NOTHING: frozenset[str] = frozenset()
_NO_PLACES: Places = {}
NOT_WRITTEN: Containers = {}
_UNKNOWN = AdmissionRank(0, "", "", 0, "")


@dataclass(frozen=True)
class RecordedPod:
    """One pod of the record.

    Attributes:
        id: which pod; without a name where only the checkpoint knows it.
        uid: the kubelet's UID of it; empty while nobody has told it.
        view: what the API shows of it, or showed; ``None`` where only the kubelet knows it.
        listed: its entry in ``List``; ``None`` where that does not show it.
        held: what its containers hold.
        outdated: what is still written of its containers though it is over: free, or about to be.
        over: its admission, or its life, has ended: it holds no more than ``List`` still shows.
        sure: it is this pod and no other of its name.
        written: what the checkpoint says of it.
    """

    id: PodId
    uid: str
    view: PodInfo | None
    listed: ListedPod | None
    held: Containers
    outdated: Containers = field(default_factory=dict)
    over: bool = False
    sure: bool = True
    written: Containers = field(default_factory=dict)

    @cached_property
    def is_settled(self) -> bool:
        """Whether all sources agree on it, and it lacks nothing: no call can be its."""
        if self.listed is None or self.view is None or self.view.terminal or self.over:
            return False
        shown = {one.name: one.held for one in self.listed.containers}
        agree = all(self.written.get(name, places) == places for name, places in shown.items())
        known = {**self.written, **{name: places for name, places in shown.items() if places}}
        return agree and self.shows and not self.lacks and self.held == known

    def is_init(self, container: str) -> bool:
        """Return whether a container is an ordinary init container, which ``List`` omits (K4)."""
        asked = self.view.demand.of(container) if self.view is not None else None
        if asked is not None:
            return asked.kind is ContainerKind.INIT
        return self.listed is not None and container not in self.listed.names

    @cached_property
    def kubelet_id(self) -> PodId:
        """Its name with the kubelet's UID, which is not the API's for a static pod (K34)."""
        return PodId(*self.id.key, self.uid)

    @cached_property
    def shape(self) -> Shape:
        """Its name and those of its listed containers: another shape is another pod."""
        return " ".join((*self.id.key, *sorted(self.listed.names if self.listed else ())))

    def places(self, resource: Resource) -> frozenset[str]:
        """Return every place of *resource* that its containers hold."""
        return _NOTHING.union(*(one.get(resource, _NOTHING) for one in self.held.values()))

    @property
    def shows(self) -> bool:
        """Whether ``List`` shows that it holds something."""
        return self.listed is not None and any(one.held for one in self.listed.containers)

    def shows_exactly(self, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether ``List`` shows a container of it with exactly *ids*."""
        entry = self.listed
        return entry is not None and any(one.held.get(resource) == ids for one in entry.containers)

    @property
    def next(self) -> ContainerDemand | None:
        """The first container that lacks something, if the API has shown the pod."""
        for each in self.view.demand.containers if self.view is not None else ():
            held = self.held.get(each.name, _NO_PLACES)
            if any(count_of(each.demand, one) and not held.get(one) for one in Resource):
                return each
        return None

    @property
    def rank(self) -> AdmissionRank:
        """Its place in the order of admission, as far as the API tells."""
        return self.view.rank if self.view is not None else _UNKNOWN

    @property
    def may_ask(self) -> bool:
        """Whether the kubelet may be admitting it."""
        return not self.over and (self.view is None or not self.view.terminal)

    @cached_property
    def lacks(self) -> bool:
        """Whether a container lacks something that it asks for.

        Of a pod that only the kubelet knows, each container that shows nothing may.
        """
        if self.view is None:
            return self.listed is not None and not all(one.held for one in self.listed.containers)
        return any(
            count_of(each.demand, resource)
            and not self.held.get(each.name, _NO_PLACES).get(resource)
            and not self.outdated.get(each.name, _NO_PLACES).get(resource)
            for each in self.view.demand.containers
            for resource in Resource
        )


@dataclass(frozen=True)
class Settled:
    """The settled pods: most of a busy node's, and the same from call to call.

    They are taken over as they were and counted once, which changes no result.

    Attributes:
        pods: these pods.
    """

    pods: tuple[RecordedPod, ...] = ()

    @cached_property
    def by_entry(self) -> Mapping[int, RecordedPod]:
        """The pods by their entries: an entry that is unchanged is the same object."""
        return {id(each.listed): each for each in self.pods}

    @cached_property
    def by_uid(self) -> Mapping[str, RecordedPod]:
        """The pods by the kubelet's UID."""
        return {each.uid: each for each in self.pods}

    @cached_property
    def by_id(self) -> Mapping[PodId, RecordedPod]:
        """The pods by the API's UID."""
        return {each.id: each for each in self.pods}

    @cached_property
    def keys(self) -> AbstractSet[Key]:
        """Their names."""
        return {each.id.key for each in self.pods}

    @cached_property
    def shapes(self) -> Mapping[Shape, int]:
        """How many pods there are of each shape."""
        return Counter([each.shape for each in self.pods])

    @cached_property
    def held(self) -> Mapping[Resource, frozenset[str]]:
        """The places that they hold."""
        return all_places(self.pods)


def settle(  # noqa: PLR0913 -- the sources
    before: Settled,
    more: Iterable[RecordedPod],
    *,
    written: Checkpoint,
    listed: Sequence[ListedPod],
    services: Sequence[InService],
    pods: Pods,
) -> Settled:
    """Return the pods of a record that are settled, and of which nothing has changed since.

    Args:
        before: those that were settled then.
        more: its other listed pods.
        written: the checkpoint.
        listed: what ``List`` shows.
        services: the pods in service: they are never settled.
        pods: what the API shows of pods.
    """
    known = {**before.by_entry}
    known.update((id(each.listed), each) for each in more if each.is_settled)
    keys = [entry.key for entry in listed]
    excluded = {each.pod.key for each in services}
    excluded |= {key for key, count in Counter(keys).items() if count > 1}
    found = tuple(
        [
            pod
            for entry, key in zip(listed, keys, strict=True)
            if (pod := known.get(id(entry))) is not None
            and pod.view is pods.by_uid(pod.uid)
            and pod.written is written.pods.get(pod.uid, NOT_WRITTEN)
            and key not in excluded
        ]
    )
    return before if found == before.pods else Settled(found)


def all_places(pods: Iterable[RecordedPod]) -> Mapping[Resource, frozenset[str]]:
    """Return the places that pods hold."""
    containers = [places for each in pods for places in each.held.values()]
    return {
        one: _NOTHING.union(*[places.get(one, _NOTHING) for places in containers])
        for one in Resource
    }
