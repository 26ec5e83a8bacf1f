"""The load of a node: cards of 141 GiB, live pods, and pods that arrive.

Pure: the two processes of a measurement build the same load from the same numbers.
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
"""Largest part of a node that live containers hold; the rest is for arriving ones."""


@dataclass(frozen=True, slots=True)
class Load:
    """A node's load.

    Attributes:
        cards: number of cards.
        live: number of containers at the start, one in each pod; fewer if they do not fit.
        arriving: number of containers that arrive, one in each pod.
    """

    cards: int
    live: int
    arriving: int

    def inventory(self) -> Inventory:
        """Return the cards."""
        return parse_inventory(cards_file(self.cards, CARD_MEMORY))

    def table(self) -> DeviceTable:
        """Return the table of the device IDs."""
        return DeviceTable(self.inventory(), BLOCK)

    @property
    def fitting(self) -> int:
        """The number of live containers that fit with at least one core each."""
        return min(self.live, int(self.cards * CORES_PER_CARD * _FILLED))

    def views(self) -> tuple[PodInfo, ...]:
        """Return the pods as the API server has them: first the live ones, then the arriving."""
        demand = self._live_demand()
        live = [_view(f"live-{number:04}", number, demand) for number in range(self.fitting)]
        more = [
            _view(f"new-{number:04}", self.fitting + number, ARRIVING)
            for number in range(self.arriving)
        ]
        return (*live, *more)

    def held(self) -> Iterator[tuple[PodInfo, dict[Resource, tuple[str, ...]]]]:
        """Yield the device IDs of each live pod: all of one card, the cards in turn."""
        table, demand = self.table(), self._live_demand()
        free = {
            resource: {card.uuid: count() for card in table.inventory.cards}
            for resource in Resource
        }
        cards = table.inventory.cards
        counts = {Resource.CORE: demand.cores, Resource.MEMORY: demand.memory}
        for number, view in enumerate(self.views()[: self.fitting]):
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
        """Divide most of the node among the live containers."""
        per_card = -(-max(self.fitting, 1) // self.cards)
        memory = self.table().slot_count(Resource.MEMORY, self.inventory().cards[0])
        return Demand(
            int(CORES_PER_CARD * _FILLED) // per_card or 1, int(memory * _FILLED) // per_card
        )


def _view(name: str, number: int, demand: Demand) -> PodInfo:
    uid = f"uid-{name}"
    container = ContainerDemand("main", ContainerKind.MAIN, 0, demand)
    return PodInfo(
        PodId("default", name, uid), PodDemand((container,)), AdmissionRank(number, "", "", 0, uid)
    )
