"""The allocation annotation of a pod: what it says of a container, and when it is written. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from agent.holdings.interfaces import AnnotationWriter
from contract.allocation import Allocation, Evidence
from contract.demand import Demand
from placement.pods import PodInfo


@dataclass(frozen=True, slots=True)
class AllocationPublisher:
    """Passes changed allocations to the annotation writer.

    Attributes:
        find: returns the allocations of a pod's containers, empty while they are not complete.
        writer: the annotation writer.
    """

    find: Callable[[PodInfo], dict[str, Allocation]]
    writer: AnnotationWriter

    def publish(self, info: PodInfo | None) -> None:
        """Publish a pod's allocations, if they are complete and its annotation differs."""
        if info is None or info.terminal or not info.demand:
            return
        found = self.find(info)
        if found and needs_annotation(found, info.annotated):
            self.writer.put(info, found)


def allocation_of(cards: Iterable[str], demand: Demand, evidence: Evidence) -> Allocation:
    """Return the allocation of a container with this request, of its cards in their order."""
    return Allocation(tuple(cards), demand.cores, demand.memory, evidence)


def needs_annotation(found: Mapping[str, Allocation], annotated: Mapping[str, Allocation]) -> bool:
    """Return whether *found* must be written to the pod's allocation annotation.

    Other evidence alone is no reason, since a restarted agent has everything from the kubelet. An
    exception is a guess by ``order`` that has been proven.
    """
    for name, new in found.items():
        old = annotated.get(name)
        if old is None or replace(old, evidence=new.evidence) != new:
            return True
        if old.evidence is Evidence.ORDER and new.evidence is not Evidence.ORDER:
            return True
    return False
