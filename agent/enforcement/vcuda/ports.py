"""What the virtual manager asks of the node."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from agent.enforcement.vcuda.identification import Peer
from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo


class Processes(Protocol):
    """Tells containers and processes of this node apart."""

    def container_of(self, pid: int, /) -> ContainerCgroup | None:
        """Return the container of a process; ``None`` when it is in none, or is gone.

        Raises:
            CgroupError: what the kernel tells of it names no one container.
            Unavailable: the kernel tells nothing.
        """
        ...

    def pids_of(self, ref: ContainerCgroup, /) -> Collection[int]:
        """Return the processes of a container, as the node numbers them; empty once it is gone.

        Raises:
            CgroupError: they are not of a PID namespace that the agent sees.
            Unavailable: the kernel tells nothing.
        """
        ...


class Runtime(Protocol):
    """The container runtime."""

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        """Return a container; ``None`` when there is none.

        Raises:
            Unavailable: no answer in time.
        """
        ...

    def succeeded(self, pod_uid: str, *, within: float) -> Collection[str]:
        """List the containers of a pod that have ended well since it was last set up.

        Raises:
            Unavailable: no answer in time.
        """
        ...


class Peers(Protocol):
    """Tells who is calling."""

    def peer(self, address: str) -> Peer | None:
        """Return who is behind a connection; ``None`` when nobody is known there."""
        ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the limits file says of the node.

    Attributes:
        bus_ids: PCI bus ID of each card, by UUID.
        driver: the driver's version, empty where it is not known.
        block: bytes of a memory block.
    """

    bus_ids: Callable[[str], str]
    driver: Callable[[], str]
    block: int
