"""Cordoned cards: the node annotation ``gpu-cordoned``, which an admin sets.

Its value is a comma-separated list of UUIDs, in upper or lower case. New containers do not get
these cards. The agent, the scheduler extender and the view read it from the node, and decide by
:func:`find_cordoned` which cards it names. An entry that names no card cordons nothing: agent and
view report it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.errors import quote
from contract.names import Names
from contract.text import fold_uuid

REASON = "cordoned"
"""The reason in inventories and refusals for a cordoned card."""

_MOST = 256
"""More cards than any node has; what follows is one more entry."""

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Cordon:
    """What the annotation means on a node.

    Attributes:
        uuids: UUIDs of the node's cordoned cards.
        unknown: the entries that are no UUID of a card of the node, as they are written.
    """

    uuids: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


NO_CORDON = Cordon()


def read_cordon(annotations: Mapping[str, Any], names: Names) -> tuple[str, ...]:
    """Return the entries of a node's annotation as they are written, each once."""
    text = annotations.get(names.gpu_cordoned)
    listed = text.split(",", _MOST) if isinstance(text, str) else ()
    return tuple(dict.fromkeys(filter(None, (each.strip() for each in listed))))


def write_cordon(entries: Iterable[str]) -> str | None:
    """Return the annotation's value; ``None`` if no card is cordoned."""
    return ",".join(sorted({*entries})) or None


def find_cordoned(entries: Iterable[str], uuids: Iterable[str]) -> Cordon:
    """Find the cards that entries name.

    Args:
        entries: as of :func:`read_cordon`.
        uuids: UUIDs of all cards of the node.
    """
    by_key = {fold_uuid(uuid): uuid for uuid in uuids}
    named = {each: by_key.get(fold_uuid(each)) for each in entries}
    return Cordon(
        frozenset(uuid for uuid in named.values() if uuid is not None),
        tuple(each for each, uuid in named.items() if uuid is None),
    )


def describe_unknown(unknown: Sequence[str], names: Names) -> str:
    """Return what is wrong with entries that name no card, for messages."""
    more = len(unknown) - _MOST_NAMED
    listed = ", ".join(map(quote, unknown[:_MOST_NAMED])) + (
        f" and {more} more" if more > 0 else ""
    )
    return (
        f"metadata.annotations[{names.gpu_cordoned}]: Invalid value: {listed}: must be UUIDs of "
        "cards of this node, separated by commas; anything else cordons no card"
    )
