"""The two resources of which a container asks: hundredths of a card, and memory blocks."""

from enum import StrEnum

from contract.demand import Demand


class Resource(StrEnum):
    """The two resources a container asks for, by the last word of their names."""

    CORE = "core"
    MEMORY = "memory"

    # As equality is. Enum's own is a call in Python for every look into a mapping.
    __hash__ = str.__hash__

    @property
    def other(self) -> "Resource":
        """The resource that a container's second pair of calls asks for."""
        return Resource.MEMORY if self is Resource.CORE else Resource.CORE


def count_of(demand: Demand, resource: Resource) -> int:
    """Return what *demand* asks of *resource*: hundredths of a card, or memory blocks."""
    return demand.cores if resource is Resource.CORE else demand.memory
