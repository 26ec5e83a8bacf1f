"""Container edits: what makes the cards of a holding available in its container. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A file or directory of the host that is mounted into a container.

    Attributes:
        container: absolute path in the container.
        host: absolute path on the host.
        read_only: whether the container may only read it.
    """

    container: str
    host: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """The content of an ``Allocate`` response, or of a CDI device.

    Attributes:
        envs: environment variables.
        devices: paths of device nodes, the same on the host and in the container.
        mounts: files and directories of the host.
        cdi: fully qualified CDI device names.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi: tuple[str, ...] = ()

    def merged_with(self, other: "ContainerEdits") -> "ContainerEdits":
        """Return both together; *other* overrides equal variables and mount points."""
        at = {each.container: each for each in (*self.mounts, *other.mounts)}
        return ContainerEdits(
            {**self.envs, **other.envs},
            tuple(dict.fromkeys((*self.devices, *other.devices))),
            tuple(at.values()),
            tuple(dict.fromkeys((*self.cdi, *other.cdi))),
        )
