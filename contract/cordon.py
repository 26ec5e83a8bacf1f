"""Cordoned cards: the node annotation ``gpu-cordoned``, which an admin sets.

Its value is a comma-separated list of UUIDs, in upper or lower case. New containers do not get
these cards. The agent, the scheduler extender and the view read it from the node, and decide by
:func:`find_cordoned` which cards it names. An entry that names no card cordons nothing: agent and
view report it.
"""

import re
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

_UUID = re.compile(
    r"(?:GPU|MIG|MIG-GPU)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:/[0-9]+){0,2}",
    re.ASCII | re.IGNORECASE,
)
"""The form of NVIDIA's UUIDs of cards and MIG instances."""


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
    """Return what is wrong with entries that name no card, for messages.

    One in the form of a UUID may be of a card that was exchanged.
    """
    gone = [each for each in unknown if _UUID.fullmatch(each)]
    others = [each for each in unknown if each not in gone]
    where, parts = f"metadata.annotations[{names.gpu_cordoned}]", []
    if gone:
        one = len(gone) == 1
        text = f"{'names a card' if one else 'name cards'} that this node does not have, or no "
        text += f"longer has; {'it cordons' if one else 'they cordon'} nothing"
        parts.append(f"{where}: Not found: {_list(gone)}: {text}")
    if others:
        parts.append(
            f"{where}: Invalid value: {_list(others)}: must be UUIDs of cards of this node, "
            "separated by commas; anything else cordons no card"
        )
    return "; ".join(parts)


def _list(entries: Sequence[str]) -> str:
    more = len(entries) - _MOST_NAMED
    listed = ", ".join(map(quote, entries[:_MOST_NAMED]))
    return f"{listed} and {more} more" if more > 0 else listed
