"""What an ``Allocate`` answer carries, before it is put on the wire."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A file or directory of the host that a container finds.

    Attributes:
        container: absolute path in the container.
        host: absolute path on the host.
        read_only: whether the container may only read it.
    """

    container: str
    host: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """An ``Allocate`` answer.

    Attributes:
        envs: environment variables.
        devices: paths of device nodes, the same on the host and in the container.
        mounts: what of the host is mounted.
        cdi: fully qualified CDI device names.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi: tuple[str, ...] = ()

    def plus(self, other: "Answer") -> "Answer":
        """Return both together; where both set a variable or a mount point, *other* has it."""
        at = {each.container: each for each in (*self.mounts, *other.mounts)}
        return Answer(
            {**self.envs, **other.envs},
            tuple(dict.fromkeys((*self.devices, *other.devices))),
            tuple(at.values()),
            tuple(dict.fromkeys((*self.cdi, *other.cdi))),
        )
