"""Formats numbers and times, and computes the geometry of bars. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from zlib import crc32

from view.model.reports import CardReport, Holder, NodeReport
from view.model.words import rfc3339

COLORS = 8
"""Number of colors for pods in the style sheet."""

_GIB = 1 << 30


def memory(size: int) -> str:
    """Format bytes in GiB, as short as possible."""
    return f"{round(size / _GIB, 2):,g} GiB" if size else "0"


def cards(cores: int) -> str:
    """Format hundredths of a card as cards."""
    return amount(cores / 100)


def amount(number: float) -> str:
    """Format a number with at most two decimals, as short as possible."""
    return f"{number:,.2f}".rstrip("0").rstrip(".") if number >= 0.005 or not number else "< 0.01"


def percent(part: int, whole: int) -> int:
    """Return a part in percent; 0 if the whole is 0."""
    return round(100 * part / whole) if whole else 0


def color(namespace: str, pod: str, used: Collection[int] = ()) -> int:
    """Return the color of a pod: the same on all cards, unless a neighbour already has it."""
    first = crc32(f"{namespace}/{pod}".encode()) % COLORS
    free = ((first + step) % COLORS for step in range(COLORS))
    return next((each for each in free if each not in used), first)


class CardTenant(NamedTuple):
    """A container on a card as it is drawn: its parts of the bars, in percent."""

    holder: Holder
    alone: bool  # the only container of its pod on this card
    color: int
    cores_at: float
    cores: float
    blocks_at: float
    blocks: float


def tenants(card: CardReport) -> tuple[CardTenant, ...]:
    """Return the containers on a card; bars of an overcommitted card are scaled to fit."""
    holders = card.holders
    all_cores = max(card.cores, sum(each.cores for each in holders), 1)
    all_blocks = max(card.blocks, sum(each.blocks for each in holders), 1)
    pods = Counter((each.namespace, each.pod) for each in holders)
    colors: dict[tuple[str, str], int] = {}
    for pod in pods:
        # With more pods than colors at least neighbours differ.
        recent = list(colors.values())[1 - COLORS :]
        colors[pod] = color(*pod, recent)
    found: list[CardTenant] = []
    cores = blocks = 0
    for each in holders:
        pod = (each.namespace, each.pod)
        found.append(
            CardTenant(
                each,
                pods[pod] == 1,
                colors[pod],
                _scaled(cores, all_cores),
                _scaled(each.cores, all_cores),
                _scaled(blocks, all_blocks),
                _scaled(each.blocks, all_blocks),
            )
        )
        cores += each.cores
        blocks += each.blocks
    return tuple(found)


def _scaled(part: int, whole: int) -> float:
    return round(100 * part / whole, 2)


def kinds(node: NodeReport) -> str:
    """Format how many cards of each model a node has."""
    counted = Counter(card.model for card in node.cards)
    return ", ".join(f"{count} x {model}" for model, count in counted.items())


def moment(text: str) -> str:
    """Format a time of the API server for people; other text is returned unchanged."""
    if len(text) == 20 and text[10] == "T" and text.endswith("Z"):
        return f"{text[:10]} {text[11:19]} UTC"
    return text


def utc(at: float) -> str:
    """Format a unix time like the API server; empty for 0."""
    return rfc3339(datetime.fromtimestamp(at, UTC)) if at else ""


class Total:
    """Sums over the selected cards; cores and bytes of memory only of those that are available."""

    def __init__(self, shown: Sequence[tuple[NodeReport, Sequence[CardReport]]]) -> None:
        every = [(node, card) for node, cards in shown for card in cards]
        available = [(node, card) for node, card in every if not card.withheld]
        self.nodes = len(shown)
        self.cards = len(every)
        self.unhealthy = sum(bool(card.unhealthy) for _, card in every)
        self.cordoned = sum(card.cordoned for _, card in every)
        self.cores = sum(card.cores for _, card in available)
        self.cores_held = sum(card.cores_held for _, card in available)
        self.memory = sum(card.blocks * node.memory_block for node, card in available)
        self.memory_held = sum(card.blocks_held * node.memory_block for node, card in available)
