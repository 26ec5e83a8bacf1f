"""The two resources of which a container asks. Python has no other list of them."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract.demand import Demand
    from contract.inventory import Amounts

HUNDRED = 100
"""The places of a resource that is counted in hundredths of a card."""


class Resource(StrEnum):
    """A resource, by the last word of its name: ``core`` is ``vcuda-core``.

    Cores decide how many cards a container gets, and whether it shares one. Of memory it gets equal
    parts of each of these cards.
    """

    CORE = "core"
    MEMORY = "memory"

    # As equality is. Enum's own is a call in Python for every look into a mapping.
    __hash__ = str.__hash__

    @property
    def other(self) -> "Resource":
        """The resource that a container's other pair of calls asks for."""
        return Resource.MEMORY if self is Resource.CORE else Resource.CORE

    @property
    def unit(self) -> str:
        """What is counted, for messages; the last word of it will do where room is short."""
        return "memory blocks" if self is Resource.MEMORY else f"{self}s"

    def places(self, blocks: int) -> int:
        """Count the places of a card that has so many memory blocks."""
        return blocks if self is Resource.MEMORY else HUNDRED


RESOURCES = tuple(Resource)
"""All of them, in their order: faster to walk than the class."""


def count_of(amounts: "Demand | Amounts", resource: Resource) -> int:
    """Return how much of *resource* is meant: hundredths of a card, or memory blocks."""
    return amounts.cores if resource is Resource.CORE else amounts.memory
