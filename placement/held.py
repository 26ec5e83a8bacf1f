"""What is held of each card of a node, and so what is free of it, as one value. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contract.inventory import NOTHING, Amounts

Taken: TypeAlias = Mapping[int, Amounts]
"""What is taken of each card that is used, by its position on the node, ascending."""


def add_up(parts: Iterable[tuple[int, Amounts]]) -> Taken:
    """Return the sums by card."""
    taken: dict[int, Amounts] = {}
    for at, amounts in parts:
        taken[at] = taken.get(at, NOTHING).plus(amounts)
    return dict(sorted(taken.items()))


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
        return tuple([size.minus(held) for size, held in zip(self.sizes, self.held, strict=True)])

    def add(self, taken: Taken) -> "HeldAmounts":
        """Return the same with more held."""
        held = list(self.held)
        for at, amounts in taken.items():
            held[at] = held[at].plus(amounts)
        return HeldAmounts(self.sizes, tuple(held))

    def subtract(self, taken: Taken) -> "HeldAmounts":
        """Return the same with less held."""
        held = list(self.held)
        for at, amounts in taken.items():
            held[at] = held[at].minus(amounts)
        return HeldAmounts(self.sizes, tuple(held))
