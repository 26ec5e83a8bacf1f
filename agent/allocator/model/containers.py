"""Containers of pods, and what they hold, by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from contract.resource import Resource
from placement.pods import PodId

Places: TypeAlias = Mapping[Resource, frozenset[str]]
"""Device IDs, by resource."""

Containers: TypeAlias = Mapping[str, Places]
"""What the containers of one pod hold, by name."""


class ContainerRef(NamedTuple):
    """A container of a pod; a tuple for the reason that :class:`PodId` is one."""

    pod: PodId
    container: str

    def __str__(self) -> str:
        """Write pod and container on one line."""
        return f"{self.pod} container {self.container}"


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong guess that the kubelet's record corrected."""

    resource: Resource
    ids: frozenset[str]
    guessed: ContainerRef
    proven: ContainerRef
