"""What the kubelet's checkpoint says, as plain data: which container holds which device IDs (K28).

Entries are of containers of any kind, ordinary init containers too, and of pods that have ended
since the file was written (K29).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from agent.allocator.model.containers import Containers
from contract.resource import Resource


class Owner(NamedTuple):
    """A container by the UID that the kubelet knows its pod by: a static pod's is its own (K34)."""

    pod_uid: str
    container: str


@dataclass(frozen=True)
class Checkpoint:
    """One state of the file.

    Attributes:
        pods: what the containers of each pod hold of our resources, by the kubelet's UID.
        unreadable: entries that were left out: their device IDs are none that an agent makes.
    """

    pods: Mapping[str, Containers] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    @cached_property
    def _owners(self) -> Mapping[Resource, Mapping[frozenset[str], list[tuple[str, str]]]]:
        found: dict[Resource, dict[frozenset[str], list[tuple[str, str]]]]
        found = {each: {} for each in Resource}
        for uid, containers in self.pods.items():
            for name, places in containers.items():
                for resource, ids in places.items():
                    found[resource].setdefault(ids, []).append((uid, name))
        return found

    def owners(self, resource: Resource, ids: frozenset[str]) -> list[Owner]:
        """Return the containers that hold exactly *ids*.

        Containers of one pod may hold the same (K7), and an ended pod's entry may stay (K29).
        """
        return [Owner(*each) for each in self._owners[resource].get(ids, ())]
