"""What is held and used of each card, by card and by container, as series of gauges. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agent.allocator.holdings import CardRoom, Holdings
from agent.allocator.model.ledger import ContainerRef

PREFIX = "gpu_turnstile_agent_"
_CONTAINER = ("namespace", "pod", "container", "card")
_CARD = ("card",)

Samples = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Series:
    """One gauge: all of its series at one moment.

    Attributes:
        name: the gauge's name.
        help: what it tells.
        labels: names of its labels.
        samples: values by the values of the labels.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Samples


def card_series(holdings: Holdings | None = None) -> Iterator[Series]:
    """Make the gauges of what is held; without series while nothing is known."""
    holdings = holdings or Holdings()
    yield from _by_container(holdings)
    rooms: dict[tuple[str, ...], CardRoom] = {
        (uuid,): room for uuid, room in holdings.cards.items()
    }
    for name, text, value in _OF_CARDS:
        samples: Samples = {labels: float(value(room)) for labels, room in rooms.items()}
        yield Series(f"{PREFIX}card_{name}", text, _CARD, samples)


_OF_CARDS: tuple[tuple[str, str, Callable[[CardRoom], int]], ...] = (
    ("cores_held", "Hundredths of a card that containers hold.", lambda room: room.cores_held),
    ("cores_free", "Hundredths of a card that nobody holds.", lambda room: room.cores_free),
    ("memory_held_bytes", "Memory that containers hold.", lambda room: room.memory_held),
    ("memory_free_bytes", "Memory that nobody holds.", lambda room: room.memory_free),
)


def _by_container(holdings: Holdings) -> Iterator[Series]:
    cores: dict[tuple[str, ...], float] = defaultdict(float)
    memory: dict[tuple[str, ...], float] = defaultdict(float)
    for holder in holdings.holders:
        for card, share in holder.shares.items():
            # Two pods of one name, one of which is ending, have the same labels.
            cores[labels_of(holder.ref, card)] += share.cores
            memory[labels_of(holder.ref, card)] += share.memory
    yield Series(
        f"{PREFIX}container_cores_held",
        "Hundredths of a card that a container holds.",
        _CONTAINER,
        cores,
    )
    yield Series(
        f"{PREFIX}container_memory_held_bytes",
        "Memory of a card that a container holds.",
        _CONTAINER,
        memory,
    )


def labels_of(ref: ContainerRef, card: str) -> tuple[str, ...]:
    """Return the values of the labels of a container on a card."""
    return ref.pod.namespace, ref.pod.name, ref.container, card
