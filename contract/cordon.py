"""Cordoned cards: the node annotation ``gpu-cordoned``, which an admin sets.

Its value is a comma-separated list of UUIDs. New containers do not get these cards. The agent,
the scheduler extender and the view read it from the node.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from contract.names import Names

REASON = "cordoned"
"""The reason in inventories and refusals for a cordoned card."""

_MOST = 256
"""More cards than any node has."""


def read_cordon(annotations: Mapping[str, Any], names: Names) -> frozenset[str]:
    """Return the UUIDs of a node's cordoned cards, including any that the node does not have."""
    text = annotations.get(names.gpu_cordoned)
    listed = text.split(",", _MOST)[:_MOST] if isinstance(text, str) else ()
    return frozenset(filter(None, (each.strip() for each in listed)))


def write_cordon(uuids: Iterable[str]) -> str | None:
    """Return the annotation's value; ``None`` if no card is cordoned."""
    return ",".join(sorted(uuids)) or None
