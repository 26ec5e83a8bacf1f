"""The demand of a pod, container by container: plain values."""

from dataclasses import dataclass
from enum import StrEnum

from contract.resource import HUNDRED, Resource, count_of

CORES_PER_CARD = HUNDRED
"""``vcuda-core`` counts hundredths of a card."""

LARGEST_COUNT = 2**31 - 1
"""The kubelet sends the size of a preferred allocation as an int32."""


class ContainerKind(StrEnum):
    """The three kinds of containers a kubelet admits, by how it counts devices."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "container"

    __hash__ = str.__hash__  # as equality is; Enum's own is a call in Python


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one container: a count for each resource, in their order.

    Attributes:
        cores: hundredths of a card: 1-99 share one card, more is whole cards.
        memory: memory blocks; 0 when the container names none.
    """

    cores: int
    memory: int

    @property
    def is_share(self) -> bool:
        """Whether the container shares one card instead of owning whole ones."""
        return 0 < self.cores < CORES_PER_CARD

    @property
    def cards(self) -> int:
        """How many cards the container sees."""
        return 1 if self.is_share else self.cores // CORES_PER_CARD

    def most_per_card(self, resource: Resource) -> int:
        """Return the places of the card that gets the most of them."""
        return -(-count_of(self, resource) // max(self.cards, 1))

    def per_card(self, resource: Resource, most: int = LARGEST_COUNT) -> tuple[int, ...]:
        """Share the places out over the cards, as evenly as they go, the first cards one more.

        Args:
            resource: of which resource.
            most: cards to list; a hostile pod may ask for millions, more than any node has.
        """
        each, more = divmod(count_of(self, resource), max(self.cards, 1))
        return tuple(each + (card < more) for card in range(min(self.cards, most)))


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """A container that asks for GPUs.

    Attributes:
        name: the container's name, unique within its pod.
        kind: how the kubelet counts its devices.
        index: its place in ``spec.initContainers`` or ``spec.containers``.
        demand: what it asks for.
    """

    name: str
    kind: ContainerKind
    index: int
    demand: Demand

    @property
    def ordinal(self) -> str:
        """Its place in the pod, as names of annotations have it: ``0``, ``init-0``."""
        return str(self.index) if self.kind is ContainerKind.MAIN else f"init-{self.index}"


@dataclass(frozen=True, slots=True)
class PodDemand:
    """All containers of a pod that ask for GPUs, in the order the kubelet admits them."""

    containers: tuple[ContainerDemand, ...] = ()

    def __bool__(self) -> bool:
        """Whether the pod asks for any GPU at all."""
        return bool(self.containers)

    def of(self, name: str) -> ContainerDemand | None:
        """Find a container by name."""
        return next((each for each in self.containers if each.name == name), None)
