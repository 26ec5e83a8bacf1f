"""Which free devices a topology manager would rather see used.

Pure: the affinity of a container arrives as a set of NUMA nodes, or as ``None`` when
no topology manager has an opinion (its policy ``none``, or no device says where it is).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from simulator.kubelet.answers import PluginResponse

NO_NODE = -1
"""Where a device without topology is listed."""

NumaHint: TypeAlias = Callable[[str, str], Collection[int] | None]
"""(pod UID, container name) -> the NUMA nodes it should stay on, or ``None``."""


def no_hint(pod_uid: str, container: str) -> Collection[int] | None:  # noqa: ARG001 - a NumaHint
    """Answer as a kubelet without a topology manager policy does."""
    return None


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a plugin advertises it."""

    id: str
    healthy: bool = True
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds of one resource.

    Attributes:
        answer: the plugin's answer, kept for the life of the pod (K12).
        nodes: where each device is, for the checkpoint.
    """

    ids: tuple[str, ...]
    answer: PluginResponse
    nodes: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Aligned:
    """The available devices, in three groups; together they are all of them."""

    aligned: tuple[str, ...]
    unaligned: tuple[str, ...]
    elsewhere: tuple[str, ...]


def split_by_affinity(
    available: Collection[str],
    devices: Mapping[str, Device],
    affinity: Collection[int] | None,
) -> Aligned:
    """Group *available* by whether it lies on the wanted NUMA nodes.

    Without a hint, or when no device of the resource names a node, nothing is aligned
    and everything is "elsewhere": then the plugin is asked for its preference even
    when exactly as many devices are free as are needed.
    """
    if affinity is None or not any(device.nodes for device in devices.values()):
        return Aligned((), (), tuple(available))
    aligned, unaligned, elsewhere = [], [], []
    for id_ in available:
        nodes = devices[id_].nodes
        if not nodes:
            elsewhere.append(id_)
        elif any(node in affinity for node in nodes):
            aligned.append(id_)
        else:
            unaligned.append(id_)
    return Aligned(tuple(aligned), tuple(unaligned), tuple(elsewhere))


def by_node(ids: Collection[str], devices: Mapping[str, Device]) -> dict[int, tuple[str, ...]]:
    """List each device under its NUMA nodes, those without one under :data:`NO_NODE`."""
    found: dict[int, tuple[str, ...]] = {}
    for id_ in ids:
        for node in devices[id_].nodes or (NO_NODE,):
            found[node] = (*found.get(node, ()), id_)
    return found
