"""What this node's own object says of its cards, asked for by a thread.

Which of them an admin has cordoned, and whether another device plugin offers them as well.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from common.backoff import spread
from contract.cordon import read_cordon
from contract.names import Names

log = logging.getLogger(__name__)

_PERIOD = 10.0
"""Seconds between two looks at the node."""

_OTHERS = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
"""Whole cards under the names of NVIDIA's device plugin; those in MIG mode have other names."""


class NodeApi(Protocol):
    """The part of the API that the node is read through."""

    def get_node(self, name: str) -> Json:
        """Get a node."""


class NodeReader:
    """Reads which cards are cordoned, and who else offers cards, and passes on what changes."""

    def __init__(
        self,
        *,
        api: NodeApi,
        node: str,
        names: Names,
        on_cordon: Callable[[frozenset[str]], None],
        on_others: Callable[[Mapping[str, int]], None],
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`.

        *on_cordon* is told the UUIDs, *on_others* the allocatable devices of other plugins by the
        name of their resource.
        """
        self._api = api
        self._node = node
        self._names = names
        self._on_cordon = on_cordon
        self._on_others = on_others
        self._period = spread(_PERIOD)
        self._known: frozenset[str] = frozenset()
        self._others: Mapping[str, int] = {}
        self._readable = True

    def run(self, stop: threading.Event) -> None:
        """Read until *stop* is set."""
        self.read()
        while not stop.wait(self._period):
            self.read()

    def read(self) -> None:
        """Read once. While the node cannot be read, what was known holds."""
        try:
            obj = self._api.get_node(self._node)
        except (Rejected, Gone, Unavailable) as error:
            if self._readable:
                more = {"node": self._node, "reason": str(error)}
                log.warning("cordoned cards cannot be read", extra=more)
            self._readable = False
            return
        self._readable = True
        found = read_cordon((obj.get("metadata") or {}).get("annotations") or {}, self._names)
        if found != self._known:
            log.info("cordoned cards", extra={"cards": sorted(found)})
            self._known = found
            self._on_cordon(found)
        others = _offered((obj.get("status") or {}).get("allocatable") or {})
        if others != self._others:
            self._others = others
            self._on_others(others)


def _offered(allocatable: Mapping[str, str]) -> dict[str, int]:
    """Return the counts of resources that are another plugin's name for whole cards, if any."""
    counts = {name: allocatable.get(name, "0") for name in _OTHERS}
    return {name: int(each) for name, each in counts.items() if each.isdecimal() and int(each)}
