"""The free devices that a topology manager prefers.

Pure: the affinity of a container is a set of NUMA nodes, or ``None`` without one (policy ``none``,
or no device has a NUMA node).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from simulator.kubelet.responses import PluginResponse

NO_NODE = -1
"""The NUMA node under which devices without topology are listed."""

NumaHint: TypeAlias = Callable[[str, str], Collection[int] | None]
"""(pod UID, container name) -> the NUMA nodes it should stay on, or ``None``."""


def no_hint(pod_uid: str, container: str) -> Collection[int] | None:  # noqa: ARG001 - a NumaHint
    """Return no hint, as without a topology manager policy."""
    return None


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a plugin advertises it."""

    id: str
    healthy: bool = True
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """The devices of one resource that one container holds.

    Attributes:
        response: the plugin's ``Allocate`` response, kept as long as the pod exists (K12).
        nodes: NUMA node -> device IDs, for the checkpoint.
    """

    ids: tuple[str, ...]
    response: PluginResponse
    nodes: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Aligned:
    """The available devices in three groups; each device is in one of them."""

    aligned: tuple[str, ...]
    unaligned: tuple[str, ...]
    elsewhere: tuple[str, ...]


def split_by_affinity(
    available: Collection[str],
    devices: Mapping[str, Device],
    affinity: Collection[int] | None,
) -> Aligned:
    """Group *available* by the NUMA nodes of *affinity*.

    Without affinity, or if no device of the resource has a NUMA node, all devices are in
    ``elsewhere``. Then the plugin is asked for its preference even if exactly as many devices are
    free as are needed.
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
    """List each device under its NUMA nodes; without one, under :data:`NO_NODE`."""
    found: dict[int, tuple[str, ...]] = {}
    for id_ in ids:
        for node in devices[id_].nodes or (NO_NODE,):
            found[node] = (*found.get(node, ()), id_)
    return found
