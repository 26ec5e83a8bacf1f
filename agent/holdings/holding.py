"""Holdings: what one container holds of the node's cards, and what all hold together. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Self

from contract.demand import CORES_PER_CARD
from contract.inventory import NOTHING, Amounts, Card
from contract.resource import Resource
from placement.pods import PodId


class ContainerRef(NamedTuple):
    """A container of a pod; a tuple for the same reason as :class:`PodId`."""

    pod: PodId
    container: str

    def __str__(self) -> str:
        return f"{self.pod} container {self.container}"


UNKNOWN = ContainerRef(PodId("", "", ""), "")
"""The container of a holding of which only the devices are known."""

HoldingKey = NewType("HoldingKey", str)
"""Names the files of a holding with cores: 20 hexadecimal digits, the same after every restart."""

NO_KEY = HoldingKey("")
"""The key of memory alone, which a device plugin gives in a call of its own: it has no files."""


def make_key(text: str) -> HoldingKey:
    """Return the key for a text that identifies a holding on this node: 80 bits of its hash."""
    return HoldingKey(hashlib.sha256(text.encode()).hexdigest()[:20])


def are_whole(cards: Mapping[str, Amounts]) -> bool:
    """Return whether these are whole cards, by their cores."""
    return bool(cards) and all(each.cores == CORES_PER_CARD for each in cards.values())


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds.

    Attributes:
        ref: the container; :data:`UNKNOWN` if only the devices are known.
        key: names its files. Containers of one pod that share devices (K7) have the same key.
        cards: the amounts by card UUID, in the order in which the container sees the cards; cards
            that the node does not have any more come last.
        is_whole: whether it holds whole cards, which have all their memory: there is no limit.
        core_limit: percent of each card up to which a share may use idle cores beyond its own
            (``vcuda-core-limit``); ``None`` for only its own.
        runtime_uid: the pod's UID in the container runtime; empty while it is not known.
        superseded: whether a later container of its pod has its devices now (K7).
        processes: over how many processes limits are divided that hold for each of them.
    """

    ref: ContainerRef
    key: HoldingKey
    cards: Mapping[str, Amounts]
    is_whole: bool
    core_limit: int | None = None
    runtime_uid: str = ""
    superseded: bool = False
    processes: int = 1

    @property
    def uid(self) -> str:
        """The pod's UID in the container runtime, or else in the API; empty if neither is known."""
        return self.runtime_uid or self.ref.pod.uid

    @property
    def cores_per_card(self) -> int:
        """The cores of each card; 0 if it has only memory."""
        return max((each.cores for each in self.cards.values()), default=0)

    @property
    def memory_limits(self) -> dict[str, int]:
        """The memory blocks to which it is limited, by card; empty for no limit."""
        if self.is_whole:
            return {}
        return {card: each.memory for card, each in self.cards.items() if each.memory}

    def count(self, resource: Resource) -> int:
        """Return the amount of *resource* on all cards."""
        return sum(resource.count_in(each) for each in self.cards.values())

    def takes(self, card: str, size: Amounts) -> Amounts:
        """Return what nobody else can get of a card of this *size*: of a whole card everything."""
        return size if self.is_whole and card in self.cards else self.cards.get(card, NOTHING)

    def is_on(self, cards: Iterable[str]) -> bool:
        """Return whether all its cards are among *cards*, and those with cores have equally many.

        Whole cards may have memory on fewer cards than cores. Without any cores it is on none.
        """
        cores = {each.cores for each in self.cards.values() if each.cores}
        return len(cores) == 1 and self.cards.keys() <= {*cards}


class HeldShare(NamedTuple):
    """What a container holds of one card.

    Attributes:
        cores: hundredths of the card.
        memory: bytes; of a whole card all its memory.
    """

    cores: int
    memory: int


class CardTotals(NamedTuple):
    """The held and free amounts of one card.

    Attributes:
        cores_held: hundredths of the card.
        cores_free: hundredths of the card.
        memory_held: bytes.
        memory_free: bytes, in whole blocks.
    """

    cores_held: int
    cores_free: int
    memory_held: int
    memory_free: int


@dataclass(frozen=True, slots=True)
class NodeHoldings:
    """What the containers of a node hold at one moment.

    Attributes:
        holders: the holdings, sorted by container.
        held: what cannot be given out again, by card UUID. What several containers share counts
            once (K7).
        inventory: the node's cards, by index.
        block: size of a memory block, bytes.
    """

    holders: tuple[Holding, ...] = ()
    held: Mapping[str, Amounts] = field(default_factory=dict)
    inventory: tuple[Card, ...] = ()
    block: int = 1

    @classmethod
    def of(cls, holders: Iterable[Holding], inventory: tuple[Card, ...], block: int) -> Self:
        """Return these holdings, and their sum on each card."""
        sizes = {card.uuid: card.size(block) for card in inventory}
        found = tuple(sorted(holders, key=lambda each: each.ref))
        held = dict[str, Amounts]()
        for each in found:
            for card in () if each.superseded else each.cards:
                taken = each.takes(card, sizes.get(card, NOTHING))
                held[card] = held.get(card, NOTHING).plus(taken)
        return cls(found, held, inventory, block)

    @property
    def free(self) -> dict[str, Amounts]:
        """What can be given out of each card."""
        return {
            card.uuid: card.size(self.block).minus(self.held.get(card.uuid, NOTHING))
            for card in self.inventory
        }

    @property
    def totals(self) -> dict[str, CardTotals]:
        """The totals of each card, by UUID; a card that is held whole has no free memory."""
        free = self.free
        for each in self.current:
            free |= dict.fromkeys(each.cards.keys() & free.keys(), NOTHING) if each.is_whole else {}
        totals = {}
        for card in self.inventory:
            size, left = card.size(self.block), free[card.uuid]
            held = (size.memory - left.memory) * self.block
            totals[card.uuid] = CardTotals(
                size.cores - left.cores, left.cores, held, left.memory * self.block
            )
        return totals

    @property
    def current(self) -> tuple[Holding, ...]:
        """The holdings whose devices no later container of their pod has."""
        return tuple(each for each in self.holders if not each.superseded)

    def shares(self, holding: Holding) -> dict[str, HeldShare]:
        """Return what a container holds of each card, cards that are gone included."""
        sizes = {card.uuid: card.memory for card in self.inventory}
        return {
            uuid: HeldShare(
                each.cores,
                sizes[uuid] if holding.is_whole and uuid in sizes else each.memory * self.block,
            )
            for uuid, each in holding.cards.items()
        }

    def find(self, runtime_uid: str, container: str) -> Holding | None:
        """Return the holding of a running container; ``None`` if it has no card of this node.

        *runtime_uid* is the UID of its pod in the runtime; unlike a name it is never reused.
        """
        here = [card.uuid for card in self.inventory]
        # It is one pod, unless a UID was forged.
        found = (
            each
            for each in self.holders
            if (each.runtime_uid, each.ref.container) == (runtime_uid, container)
        )
        return next((each for each in found if each.is_on(here)), None)
