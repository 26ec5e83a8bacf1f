"""The interfaces that registrations need of the node."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo


class Processes(Protocol):
    """Maps processes of this node to containers, and back.

    Both raise ``CgroupError`` if cgroups are invalid or ambiguous, and ``Unavailable``.
    """

    def container_of(self, pid: int, /) -> ContainerCgroup | None:
        """Return the container of a process; ``None`` if it is in none, or has ended."""

    def pids_of(self, ref: ContainerCgroup, /) -> Collection[int]:
        """Return the process IDs of a container in the host's namespace; empty if it has ended."""


class ContainerRuntime(Protocol):
    """The container runtime; its methods raise ``Unavailable`` without a response in time."""

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        """Return a container; ``None`` if there is none."""

    def succeeded(self, pod_uid: str, *, within: float) -> Collection[str]:
        """Return the containers of a pod that have ended successfully in its newest sandbox."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The node's data in the limits file; values that are not known are empty."""

    bus_ids: Callable[[str], str]
    """The PCI bus ID of a card, by its UUID."""
    driver: Callable[[], str]
    block: int
    """Bytes of a memory block."""
