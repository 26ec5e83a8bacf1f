"""Compare the kubelet's state, the pod's annotation and the container's own log. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.allocator.slots import Slot
from agent.enforcement.vcuda.config import VcudaConfig
from contract.allocation import Allocation
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource
from simulator.node.limits import own_limits

BLOCK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Seen:
    """One container, by kubelet, annotation and its own log.

    Attributes:
        pod: its pod's name.
        container: its name and request.
        held: the device IDs that ``List`` shows.
        recorded: its part of the annotation ``gpu-allocation``.
        visible: the cards in its environment, as it printed them; ``None`` if it has not.
        uid: its pod's UID.
        limits: the limits it found when it started, as it printed them; ``None`` if it found none.
        limits_of: the container whose limits it must find; ``""`` for its own.
        core_limit: percent of a card that it may use while others do not; ``None`` if its cores.
    """

    pod: str
    container: ContainerDemand
    held: Mapping[Resource, frozenset[str]]
    recorded: Allocation | None
    visible: tuple[str, ...] | None
    uid: str = ""
    limits: VcudaConfig | None = None
    core_limit: int | None = None
    limits_of: str = ""

    def __str__(self) -> str:
        return f"{self.pod} {self.container.name}"


def findings(
    containers: Sequence[Seen], *, init_recorded: bool = True, enforced: bool = True
) -> list[str]:
    found = [
        f"{each}: {wrong}"
        for each in containers
        for wrong in (*_wrong_limits(each, enforced), *_wrong(each, init_recorded))
    ]
    owners: dict[tuple[Resource, str], Seen] = {}
    for each in containers:
        for resource, ids in each.held.items():
            for device_id in sorted(ids):
                other = owners.setdefault((resource, device_id), each)
                if other is not each:
                    found.append(f"{device_id} of {resource} is held by {other} and {each}")
    return found


def _wrong(seen: Seen, init_recorded: bool) -> list[str]:
    demand, recorded = seen.container.demand, seen.recorded
    init = seen.container.kind is ContainerKind.INIT
    wrong = []
    if seen.visible is None:
        wrong.append("has not printed its cards")
    if not init:
        cards = {
            resource: {Slot.parse(each).card for each in seen.held.get(resource, ())}
            for resource in Resource
        }
        for resource in Resource:
            held = len(seen.held.get(resource, ()))
            if held != resource.count_in(demand):
                wrong.append(f"requests {resource.count_in(demand)} of {resource}, holds {held}")
        if demand.memory and cards[Resource.MEMORY] != cards[Resource.CORE]:
            wrong.append(
                f"has its cores on {sorted(cards[Resource.CORE])} "
                f"and its memory on {sorted(cards[Resource.MEMORY])}"
            )
        if seen.visible is not None and set(seen.visible) != cards[Resource.CORE]:
            wrong.append(
                f"sees {seen.visible}, the kubelet allocated {sorted(cards[Resource.CORE])}"
            )
        for resource in Resource if demand.is_share else ():
            parts = Counter(Slot.parse(each).card for each in seen.held.get(resource, ()))
            if tuple(sorted(parts.values(), reverse=True)) != demand.per_card(resource):
                wrong.append(f"requests {demand.per_card(resource)} of {resource}, has {parts}")
    if recorded is None:
        if init_recorded or not init:
            wrong.append("is not in the annotation")
        return wrong
    if (recorded.cores, recorded.memory_blocks) != (demand.cores, demand.memory):
        wrong.append(
            f"requests {demand.cores} cores and {demand.memory} blocks, "
            f"{recorded.cores} cores and {recorded.memory_blocks} blocks are in the annotation"
        )
    if seen.visible is not None and recorded.cards != seen.visible:
        wrong.append(f"sees {seen.visible}, the annotation has {recorded.cards}")
    return wrong


def _wrong_limits(seen: Seen, enforced: bool) -> list[str]:
    container = replace(seen.container, name=seen.limits_of or seen.container.name)
    own = own_limits(seen.uid, container, block=BLOCK_BYTES) if enforced else None
    if own is not None and seen.core_limit is not None:
        own = replace(own, hard_limit=False, limit=seen.core_limit)
    return [] if seen.limits == own else [f"found {seen.limits}"]
