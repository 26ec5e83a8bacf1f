"""The interfaces by which registrations read the node."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo


class Processes(Protocol):
    """Maps processes of this node to containers, and back.

    Both raise ``CgroupError`` where what the kernel tells is not believed, and ``Unavailable``.
    """

    def container_of(self, pid: int, /) -> ContainerCgroup | None:
        """Return the container of a process; ``None`` when it is in none, or is gone."""

    def pids_of(self, ref: ContainerCgroup, /) -> Collection[int]:
        """Return the processes of a container, as the node numbers them; empty once it is gone."""


class ContainerRuntime(Protocol):
    """The container runtime, ``Unavailable`` where it does not answer in time."""

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        """Return a container; ``None`` when there is none."""

    def succeeded(self, pod_uid: str, *, within: float) -> Collection[str]:
        """Return the containers of a pod that have ended well since it was last set up."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the limits file says of the node; what is not known is empty."""

    bus_ids: Callable[[str], str]
    """The PCI bus ID of a card, by its UUID."""
    driver: Callable[[], str]
    block: int
    """Bytes of a memory block."""
