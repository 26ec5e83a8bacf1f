"""Cards that an admin keeps new containers from: the node annotation ``gpu-cordoned``.

Its text has UUIDs, comma-separated. It stands on the node, where the agent, the scheduler
extender and the view read it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from contract.names import Names

REASON = "cordoned"
"""Why such a card is not given out, as the agent says it."""

_MOST = 256
"""More cards than any node has."""


def read_cordon(annotations: Mapping[str, Any], names: Names) -> frozenset[str]:
    """Return the UUIDs of a node's cordoned cards; one that the node does not have does no harm."""
    text = annotations.get(names.gpu_cordoned)
    listed = text.split(",", _MOST)[:_MOST] if isinstance(text, str) else ()
    return frozenset(filter(None, (each.strip() for each in listed)))


def write_cordon(uuids: Iterable[str]) -> str | None:
    """Return the annotation's text; ``None`` where no card is cordoned."""
    return ",".join(sorted(uuids)) or None
