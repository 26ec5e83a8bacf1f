"""The links between the cards of a node, through NVML: PCIe paths and NVLinks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from agent.cards.nvml_calls import bus_id_of, or_none
from agent.cards.pci import is_switch
from contract.inventory import Card, Link

_LEVELS: Mapping[int, str] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two chips on one board, behind its bridge
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


class _NvlinkEnds(NamedTuple):
    """The other ends of a card's NVLinks.

    Attributes:
        direct: number of links to each card, by bus ID.
        switched: number of links to NVSwitches.
    """

    direct: Counter[str]
    switched: int


def find_links(cards: Sequence[Card], handles: Mapping[int, Any], sysfs: Path) -> tuple[Link, ...]:
    """Find the PCIe path and the NVLinks of each pair of cards, as far as NVML reports them.

    *handles* are those of the cards, by index.
    """
    ends = {card.index: _nvlinks(handles[card.index], sysfs) for card in cards}
    links = []
    for one, other in combinations(cards, 2):
        ends_of_one, ends_of_other = ends[one.index], ends[other.index]
        # Links to NVSwitches reach every other card that has such links.
        lanes = max(ends_of_one.direct[other.bus_id], ends_of_other.direct[one.bus_id])
        lanes += min(ends_of_one.switched, ends_of_other.switched)
        level = or_none(
            pynvml.nvmlDeviceGetTopologyCommonAncestor,
            handles[one.index],
            handles[other.index],
        )
        pair, pcie = (one.index, other.index), _LEVELS.get(-1 if level is None else level)
        if pcie is not None:
            links.append(Link(pair, pcie))
        if lanes:
            links.append(Link(pair, f"NV{lanes}"))
    return tuple(links)


def _nvlinks(handle: Any, sysfs: Path) -> _NvlinkEnds:
    """Count the active NVLinks of a card: to each other card, and to switches."""
    direct: Counter[str] = Counter()
    switched = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not or_none(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        kind = or_none(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            switched += 1
            continue
        remote = or_none(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is None:
            continue
        bus_id = bus_id_of(remote)
        # Drivers before R460 do not report the type of the remote device.
        if kind is None and is_switch(bus_id, sysfs):
            switched += 1
        else:
            direct[bus_id] += 1
    return _NvlinkEnds(direct, switched)
