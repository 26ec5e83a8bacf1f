"""Held and free amounts of a node's cards, as one value. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contract.inventory import NOTHING, Amounts

HeldByPosition: TypeAlias = Mapping[int, Amounts]
"""What one holder has of each card that it uses, by the card's position, ascending."""


def add_up(parts: Iterable[tuple[int, Amounts]]) -> HeldByPosition:
    """Return the sums by card."""
    sums: dict[int, Amounts] = {}
    for position, amounts in parts:
        sums[position] = sums.get(position, NOTHING).plus(amounts)
    return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True)
class HeldAmounts:
    """The held amounts of each card, by its position.

    Attributes:
        sizes: cores and memory of each card.
        held: held amounts of each card, which may exceed its size.
    """

    sizes: Sequence[Amounts]
    held: tuple[Amounts, ...]

    @classmethod
    def none_held(cls, sizes: Sequence[Amounts]) -> "HeldAmounts":
        """Return entirely free cards of these sizes."""
        return cls(sizes, (NOTHING,) * len(sizes))

    @property
    def free(self) -> tuple[Amounts, ...]:
        """The free amounts of each card: 0 if more is held than the card has."""
        return tuple([size.minus(held) for size, held in zip(self.sizes, self.held, strict=True)])

    def add(self, more: HeldByPosition) -> "HeldAmounts":
        """Return a copy with *more* held."""
        held = list(self.held)
        for position, amounts in more.items():
            held[position] = held[position].plus(amounts)
        return HeldAmounts(self.sizes, tuple(held))

    def subtract(self, released: HeldByPosition) -> "HeldAmounts":
        """Return a copy with *released* no longer held."""
        held = list(self.held)
        for position, amounts in released.items():
            held[position] = held[position].minus(amounts)
        return HeldAmounts(self.sizes, tuple(held))
