"""The two resources that a container can request. Python code has no other list of them."""

from enum import StrEnum
from typing import Protocol

from contract.text import format_count

HUNDRED = 100
"""The slots of a card for a resource that is counted in hundredths of a card."""


class Counts(Protocol):
    """Amounts of both resources: a container's demand, or amounts of a card."""

    @property
    def cores(self) -> int:
        """Hundredths of a card."""

    @property
    def memory(self) -> int:
        """Memory blocks."""


class Resource(StrEnum):
    """A resource, by the last word of its name: ``core`` is ``vcuda-core``.

    The count of cores decides how many cards a container gets, and whether it shares one. Its
    memory is divided equally over these cards.
    """

    CORE = "core"
    MEMORY = "memory"

    # Like equality. Enum's own is Python code, which every lookup in a mapping would call.
    __hash__ = str.__hash__

    @property
    def other(self) -> "Resource":
        """The other resource."""
        return Resource.MEMORY if self is Resource.CORE else Resource.CORE

    @property
    def unit(self) -> str:
        """The unit for messages; its last word is enough in short ones."""
        return "memory blocks" if self is Resource.MEMORY else f"{self}s"

    def format_count(self, count: int) -> str:
        """Format a count with the unit: ``1 core``, ``2 memory blocks``."""
        return format_count(count, "memory block" if self is Resource.MEMORY else str(self))

    def count_in(self, counts: Counts) -> int:
        """Return the amount of this resource: hundredths of a card, or memory blocks."""
        return counts.cores if self is Resource.CORE else counts.memory

    def slots(self, blocks: int) -> int:
        """Return the number of slots of a card with *blocks* memory blocks."""
        return blocks if self is Resource.MEMORY else HUNDRED


RESOURCES = tuple(Resource)
"""All resources, in their order: faster to iterate over than the class."""
