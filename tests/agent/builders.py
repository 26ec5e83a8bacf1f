"""Short ways to write the plain data the decisions work on: pods, containers, snapshots, nodes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from agent.allocator.identity import KnownPods, kubelet_uid
from agent.allocator.interfaces import Checkpoint, HeldSlots, ListedContainer, ListedPod
from agent.allocator.slot_holdings import key_of
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import SnapshotPod
from agent.holdings.holding import ContainerRef, Holding, are_whole
from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.inventory import Amounts, Card, Inventory
from contract.resource import Resource
from placement.pods import AdmissionRank, PodId, PodInfo
from tests.examples import share

CORE, MEMORY = Resource.CORE, Resource.MEMORY
INIT, SIDECAR, MAIN = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.MAIN
BLOCK = 256 << 20

patient = settings(deadline=None, max_examples=share(50))
"""For property tests: they have no deadline, and every run tries other examples."""


def cases(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test with every row of a table: the name of a case -> its values."""
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def container(
    name: str = "c0",
    cores: int = 50,
    memory: int = 4,
    *,
    kind: ContainerKind = MAIN,
    index: int = 0,
) -> ContainerDemand:
    return ContainerDemand(name, kind, index, Demand(cores, memory))


def pod_id(name: str = "p", uid: str | None = None, *, namespace: str = "default") -> PodId:
    """Return a pod's identity; its UID is ``u-<name>`` by default."""
    return PodId(namespace, name, f"u-{name}" if uid is None else uid)


def view(
    name: str = "p",
    *containers: ContainerDemand,
    uid: str | None = None,
    at: int = 0,
    terminal: bool = False,
) -> PodInfo:
    """Return a pod in the API, by default with one container of 50 cores and 4 blocks.

    *at* is its position in the queue.
    """
    identity = pod_id(name, uid)
    position = AdmissionRank(at, "", "", 0, identity.uid)
    return PodInfo(identity, PodDemand(containers or (container(),)), position, terminal=terminal)


def ids(card: str, numbers: Iterable[int]) -> frozenset[str]:
    return frozenset(f"{card}::{number}" for number in numbers)


def listed(name: str = "p", /, **held: Mapping[Resource, frozenset[str]] | None) -> ListedPod:
    """Return an entry of ``List``: container name -> its slots, ``None`` or empty for none."""
    return ListedPod(
        "default",
        name,
        tuple(ListedContainer(each, dict(what or {})) for each, what in held.items()),
    )


def pods_of(*views: PodInfo, departed: Iterable[PodInfo] = ()) -> KnownPods:
    """Return the pods that the API shows, and those that it showed before."""
    return KnownPods().updated([*views, *departed]).updated(list(views))


def checkpoint_of(**pods: Mapping[str, HeldSlots]) -> Checkpoint:
    """Return a checkpoint: name of a pod (its UID is ``u-<name>``) -> slots of its containers."""
    return Checkpoint({f"u-{name}": containers for name, containers in pods.items()})


def snapshot_pod(pod: PodInfo, /, **held: HeldSlots) -> SnapshotPod:
    """Return a listed pod of a snapshot: container name -> its slots."""
    shown = {
        each.name: held.get(each.name, {})
        for each in pod.demand.containers
        if each.kind is not ContainerKind.INIT  # fact K4
    }
    entry = listed(pod.id.name, **shown)
    return SnapshotPod(pod.id, kubelet_uid(pod), pod, entry, held)


def snapshot_of(*pods: SnapshotPod) -> AllocationSnapshot:
    """Return a snapshot of these pods while ``List`` is available."""
    return AllocationSnapshot(pods, listing=True)


def card(index: int = 0, *, uuid: str | None = None, blocks: int = 10) -> Card:
    return Card(
        uuid=f"GPU-{index}" if uuid is None else uuid,
        index=index,
        minor=index,
        model="Test",
        memory=blocks * BLOCK,
        numa=None,
        bus_id="",
        device=f"/dev/nvidia{index}",
    )


def device_table(cards: int = 2, *, blocks: int = 10) -> DeviceTable:
    """Return the device IDs of cards ``GPU-0`` … with *blocks* memory blocks each."""
    return DeviceTable(
        Inventory(tuple(card(index, blocks=blocks) for index in range(cards))), BLOCK
    )


def every_id(node: DeviceTable, resource: Resource) -> list[str]:
    """Return every device ID of one resource, as a kubelet without allocations offers them."""
    return list(node.slots(resource))


def holding(
    ref: ContainerRef,
    core_ids: Iterable[str] = (),
    blocks: Mapping[str, int] | None = None,
    *,
    core_limit: int | None = None,
) -> Holding:
    """Return the holding of a container with core slots, and with memory blocks by card."""
    core_ids, blocks = frozenset(core_ids), blocks or {}
    cores = Counter(each.partition("::")[0] for each in core_ids)
    names = (*sorted(cores), *(each for each in blocks if each not in cores))
    cards = {each: Amounts(cores[each], blocks.get(each, 0)) for each in names}
    return Holding(ref, key_of(core_ids), cards, are_whole(cards), core_limit)


def write_hami_core(
    path: Path, *texts: bytes, machine: int = 0, kind: int = 3, reads: bool = True
) -> None:
    """Write a file that looks like HAMi-core for this machine, with texts of newer builds."""
    header = bytearray(Path("/proc/self/exe").read_bytes()[:20])
    header[16:18] = kind.to_bytes(2, "little")
    if machine:
        header[18:20] = machine.to_bytes(2, "little")
    variables = (b"CUDA_DEVICE_MEMORY_LIMIT", b"CUDA_DEVICE_SM_LIMIT") if reads else ()
    path.write_bytes(b"\0".join((bytes(header), *variables, *texts)))
