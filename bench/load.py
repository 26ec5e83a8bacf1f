"""What stands on a node when a container arrives: cards of 141 GiB, live pods, and the next ones.

Pure: both sides of a measurement, which are two processes, make the same from the same numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from agent.allocator.slots import DeviceTable
from agent.cards.inventory import parse_inventory
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.inventory import Inventory
from contract.resource import Resource
from placement.pods import AdmissionRank, PodId, PodInfo
from simulator.cards import cards_file

BLOCK = 256 << 20
CARD_MEMORY = "141Gi"
ARRIVING = Demand(1, 4)

_FILLED = 0.75
"""How much of a node live containers take at most; the rest is for those that arrive."""


@dataclass(frozen=True, slots=True)
class Load:
    """A node's load.

    Attributes:
        live: how many containers live on it, one a pod.
    """

    cards: int
    live: int
    arriving: int

    def inventory(self) -> Inventory:
        """Make the cards."""
        return parse_inventory(cards_file(self.cards, CARD_MEMORY))

    def table(self) -> DeviceTable:
        """Make the tickets."""
        return DeviceTable(self.inventory(), BLOCK)

    @property
    def settled(self) -> int:
        """How many live containers really fit: at least one core each."""
        return min(self.live, int(self.cards * CORES_PER_CARD * _FILLED))

    def views(self) -> tuple[PodInfo, ...]:
        """Return the pods as the API shows them: the live ones, then those to come."""
        demand = self._live_demand()
        live = [_view(f"live-{number:04}", number, demand) for number in range(self.settled)]
        more = [
            _view(f"new-{number:04}", self.settled + number, ARRIVING)
            for number in range(self.arriving)
        ]
        return (*live, *more)

    def held(self) -> Iterator[tuple[PodInfo, dict[Resource, tuple[str, ...]]]]:
        """Return what each live pod holds: places of one card, cards in turn."""
        table, demand = self.table(), self._live_demand()
        free = {
            resource: {card.uuid: count() for card in table.inventory.cards}
            for resource in Resource
        }
        cards = table.inventory.cards
        counts = {Resource.CORE: demand.cores, Resource.MEMORY: demand.memory}
        for number, view in enumerate(self.views()[: self.settled]):
            card = cards[number % len(cards)].uuid
            yield (
                view,
                {
                    resource: tuple(
                        f"{card}::{next(free[resource][card])}" for _ in range(counts[resource])
                    )
                    for resource in Resource
                },
            )

    def _live_demand(self) -> Demand:
        """Share most of the node out over the live containers."""
        a_card = -(-max(self.settled, 1) // self.cards)
        memory = self.table().slot_count(Resource.MEMORY, self.inventory().cards[0])
        return Demand(int(CORES_PER_CARD * _FILLED) // a_card or 1, int(memory * _FILLED) // a_card)


def _view(name: str, number: int, demand: Demand) -> PodInfo:
    uid = f"uid-{name}"
    container = ContainerDemand("main", ContainerKind.MAIN, 0, demand)
    return PodInfo(
        PodId("default", name, uid), PodDemand((container,)), AdmissionRank(number, "", "", 0, uid)
    )
