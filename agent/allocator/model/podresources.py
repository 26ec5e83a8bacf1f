"""What the kubelet's ``List`` shows, as plain data: an answer is a tuple of pods."""

from collections.abc import Mapping
from dataclasses import dataclass

from contract.demand import ContainerKind
from contract.resource import Resource, count_of
from placement.pods import Key, PodInfo


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

    @property
    def names(self) -> frozenset[str]:
        """The names of its containers."""
        return frozenset(each.name for each in self.containers)

    def may_be(self, view: PodInfo) -> bool:
        """Return whether the entry has just the containers that it must have if it is *view*.

        Restartable init containers are listed by newer kubelets only.
        """
        names = self.names
        if view.mains and not view.mains <= names <= view.mains | view.sidecars:
            return False
        return all(
            each.name in names
            for each in view.demand.containers
            if each.kind is not ContainerKind.INIT
        )

    def contradicts(self, view: PodInfo) -> bool:
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
