"""What a plugin's ``Allocate`` answers for one container, and how two answers are merged."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount into the container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a container receives: of one resource, or of all once merged."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """What a container finally received.

    Attributes:
        answer: everything, the first of two that conflict.
        conflicts: what a later answer said differently, in words.
    """

    answer: Answer
    conflicts: tuple[str, ...] = ()


def merge(answers: Iterable[Answer]) -> Merged:
    """Merge the answers of all resources as the kubelet does: the first wins, silently.

    The kubelet walks a Go map here, so with a conflict it is chance which one is first;
    *answers* come in that chance order.
    """
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    devices: dict[str, DeviceNode] = {}
    cdi: dict[str, None] = {}
    conflicts: list[str] = []
    for answer in answers:
        for kind, into, more in (
            ("env", envs, answer.envs),
            ("annotation", annotations, answer.annotations),
        ):
            for key, value in more.items():
                if into.setdefault(key, value) != value:
                    conflicts.append(f"{kind} {key}: {into[key]!r} and {value!r}")
        for mount in answer.mounts:
            kept = mounts.setdefault(mount.container_path, mount)
            if kept.host_path != mount.host_path:
                conflicts.append(
                    f"mount {mount.container_path}: {kept.host_path!r} and {mount.host_path!r}"
                )
        for device in answer.devices:
            node = devices.setdefault(device.container_path, device)
            if node.host_path != device.host_path:
                conflicts.append(
                    f"device {device.container_path}: {node.host_path!r} and {device.host_path!r}"
                )
        cdi |= dict.fromkeys(answer.cdi)
    merged = Answer(envs, tuple(mounts.values()), tuple(devices.values()), annotations, tuple(cdi))
    return Merged(merged, tuple(conflicts))
