"""What is held of each card of a node, and so what is free of it, as one value. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from contract.inventory import NOTHING, Amounts

Taken = tuple[tuple[int, int, int], ...]
"""Of each card that is used: its position on the node, cores and memory blocks."""


@dataclass(frozen=True, slots=True)
class HeldAmounts:
    """What is held of each card, by its position.

    Attributes:
        sizes: what each card has.
        held: what is held of it, which may be more than there is.
    """

    sizes: Sequence[Amounts]
    held: tuple[Amounts, ...]

    @classmethod
    def nothing_of(cls, sizes: Sequence[Amounts]) -> "HeldAmounts":
        """Start with cards of which nothing is held."""
        return cls(sizes, (NOTHING,) * len(sizes))

    @property
    def free(self) -> tuple[Amounts, ...]:
        """What is free of each card: nothing where more is held than there is."""
        return tuple([size.less(held) for size, held in zip(self.sizes, self.held, strict=True)])

    def take(self, taken: Iterable[tuple[int, int, int]]) -> "HeldAmounts":
        """Return the same with more held."""
        held = list(self.held)
        for at, cores, memory in taken:
            held[at] = held[at].plus(Amounts(cores, memory))
        return replace(self, held=tuple(held))

    def give_back(self, taken: Iterable[tuple[int, int, int]]) -> "HeldAmounts":
        """Return the same with less held."""
        held = list(self.held)
        for at, cores, memory in taken:
            held[at] = held[at].less(Amounts(cores, memory))
        return replace(self, held=tuple(held))
