"""What is held and used of each card, by card and by container, as series of gauges. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agent.cards.card_use import CardUse
from agent.usage.holdings import CardRoom, HeldShare, Holder, Holdings
from agent.usage.join import Measured, Used

PREFIX = "gpu_turnstile_agent_"
_CONTAINER = ("namespace", "pod", "container", "card")
_CARD = ("card",)

Samples = Mapping[tuple[str, ...], float]
Value = float | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Series:
    """One gauge: all of its series at one moment, by the values of its labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Samples


_OF_ROOMS: tuple[tuple[str, str, Callable[[CardRoom], Value]], ...] = (
    ("cores_held", "Hundredths of a card that containers hold.", lambda room: room.cores_held),
    ("cores_free", "Hundredths of a card that nobody holds.", lambda room: room.cores_free),
    ("memory_held_bytes", "Memory that containers hold.", lambda room: room.memory_held),
    ("memory_free_bytes", "Memory that nobody holds.", lambda room: room.memory_free),
)
_OF_USES: tuple[tuple[str, str, Callable[[CardUse], Value]], ...] = (
    ("cores_used", "Hundredths of the time in which a card computed.", lambda use: use.cores),
    ("memory_used_bytes", "Memory of a card in use, the driver's too.", lambda use: use.memory),
)
_OF_SHARES: tuple[tuple[str, str, Callable[[HeldShare], Value]], ...] = (
    ("cores_held", "Hundredths of a card that a container holds.", lambda share: share.cores),
    ("memory_held_bytes", "Memory of a card that a container holds.", lambda share: share.memory),
)
_OF_CONTAINERS: tuple[tuple[str, str, Callable[[Used], Value]], ...] = (
    ("cores_used", "Hundredths of a card that a container uses.", lambda used: used.cores),
    ("memory_used_bytes", "Memory of a card that a container uses.", lambda used: used.memory),
)


def card_series(
    holdings: Holdings | None = None, measured: Measured | None = None
) -> Iterator[Series]:
    """Make the gauges of what is held and used; without series while nothing is known.

    Nothing is told of the use of who is not among the holders.
    """
    holdings, measured = holdings or Holdings(), measured or Measured()
    held = [(_labels(each, card), share) for each, card, share in _shares(holdings.holders)]
    used = [
        (_labels(each, card), found)
        for each in holdings.holders
        for card, found in measured.use.get(each.ref, {}).items()
    ]
    yield from _series("container", _CONTAINER, _OF_SHARES, held)
    yield from _series("container", _CONTAINER, _OF_CONTAINERS, used)
    yield from _series("card", _CARD, _OF_ROOMS, [((k,), v) for k, v in holdings.cards.items()])
    uses = [((card,), measured.cards[card]) for card in holdings.cards if card in measured.cards]
    yield from _series("card", _CARD, _OF_USES, uses)


def _series(
    prefix: str,
    labels: tuple[str, ...],
    gauges: Iterable[tuple[str, str, Callable[[T], Value]]],
    items: Collection[tuple[tuple[str, ...], T]],
) -> Iterator[Series]:
    for name, text, value in gauges:
        samples: dict[tuple[str, ...], float] = defaultdict(float)
        for key, item in items:
            found = value(item)
            if found is not None:
                # Two pods of one name, one of which is ending, have the same labels.
                samples[key] += found
        yield Series(f"{PREFIX}{prefix}_{name}", text, labels, samples)


def _shares(holders: Iterable[Holder]) -> Iterator[tuple[Holder, str, HeldShare]]:
    for each in holders:
        for card, share in each.shares.items():
            yield each, card, share


def _labels(holder: Holder, card: str) -> tuple[str, ...]:
    ref = holder.ref
    return ref.pod.namespace, ref.pod.name, ref.container, card
