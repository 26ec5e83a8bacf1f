"""What a pod requests, container by container: plain values."""

from dataclasses import dataclass
from enum import StrEnum

from contract.resource import HUNDRED, Resource

CORES_PER_CARD = HUNDRED
"""``vcuda-core`` counts hundredths of a card."""

LARGEST_COUNT = 2**31 - 1
"""The kubelet sends the size of a preferred allocation as an int32: no larger count is possible."""


class ContainerKind(StrEnum):
    """The three kinds of containers, by how the kubelet counts their devices."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "container"

    __hash__ = str.__hash__  # like equality; Enum's own is slower, because it is Python code


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one container: a count for each resource, in the order of :class:`Resource`.

    Attributes:
        cores: hundredths of a card, of all its cards together: fewer than 100 for each of *split*
            cards are a share, more is whole cards.
        memory: memory blocks, of all its cards together; 0 if the container requests none.
        split: number of different cards over which a share is divided evenly (the annotation
            ``gpu-cards-<container>``).
    """

    cores: int
    memory: int
    split: int = 1

    @property
    def is_share(self) -> bool:
        """Whether the container requests shares of cards, not whole cards."""
        return 0 < self.cores < CORES_PER_CARD * self.split

    @property
    def cards(self) -> int:
        """The number of cards that the container sees."""
        return self.split if self.is_share else self.cores // CORES_PER_CARD

    @property
    def cores_per_card(self) -> int:
        """The cores that it has of each card."""
        return self.cores // self.split if self.is_share else CORES_PER_CARD

    def most_per_card(self, resource: Resource) -> int:
        """Return the largest count that any one card provides."""
        return -(-resource.count_in(self) // max(self.cards, 1))

    def per_card(self, resource: Resource, most: int = LARGEST_COUNT) -> tuple[int, ...]:
        """Distribute the count over the cards as evenly as possible; the first ones get one more.

        At most *most* cards are listed: a hostile pod may request millions, more than any node has.
        """
        each, remainder = divmod(resource.count_in(self), max(self.cards, 1))
        return tuple(each + (card < remainder) for card in range(min(self.cards, most)))


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """A container that requests GPUs.

    Attributes:
        name: the container's name, unique within its pod.
        kind: how the kubelet counts its devices.
        index: its index in ``spec.initContainers`` or ``spec.containers``.
        demand: its request.
    """

    name: str
    kind: ContainerKind
    index: int
    demand: Demand

    @property
    def ordinal(self) -> str:
        """Its index as it stands in names of annotations: ``0``, or ``init-0`` in that list."""
        return str(self.index) if self.kind is ContainerKind.MAIN else f"init-{self.index}"


@dataclass(frozen=True, slots=True)
class PodDemand:
    """All containers of a pod that request GPUs, in the order in which the kubelet admits them."""

    containers: tuple[ContainerDemand, ...] = ()

    def __bool__(self) -> bool:
        """Whether the pod requests any GPU."""
        return bool(self.containers)

    def of(self, name: str) -> ContainerDemand | None:
        """Find a container by name."""
        return next((each for each in self.containers if each.name == name), None)
