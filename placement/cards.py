"""Cards and the links between them, as plain values."""

from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Card:
    """One card.

    Attributes:
        uuid: the card's UUID as NVML gives it.
        index: its index in NVML's order, unique on the node.
        minor: the number of its device node.
        model: the product name.
        memory: total memory, bytes.
        numa: NUMA node, ``None`` when unknown.
        bus_id: PCI bus id, empty when unknown.
        device: path of its device node on the host.
    """

    uuid: str
    index: int
    minor: int
    model: str
    memory: int
    numa: int | None
    bus_id: str
    device: str


@dataclass(frozen=True, slots=True)
class Link:
    """One way between two cards, in the words of ``nvidia-smi topo -m``.

    Attributes:
        cards: the two indices, ascending.
        kind: ``NV<n>`` (n NVLinks), ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
    """

    cards: tuple[int, int]
    kind: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """All cards of a node, by index, and the links between them.

    Two cards with NVLinks have two links: their way over PCIe, then the NVLinks. A reader that
    knows of one takes the last.
    """

    cards: tuple[Card, ...]
    links: tuple[Link, ...] = ()

    def card(self, uuid: str) -> Card | None:
        """Find a card by UUID."""
        return next((card for card in self.cards if card.uuid == uuid), None)

    def unlinked(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of indices, ascending, whose link is not known."""
        known = {link.cards for link in self.links}
        pairs = combinations((card.index for card in self.cards), 2)
        return tuple(pair for pair in pairs if pair not in known)
