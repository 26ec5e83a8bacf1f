"""Read which cards of this node an admin has cordoned, now and then, in a thread."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from common.backoff import spread
from contract.cordon import read_cordon
from contract.names import Names

log = logging.getLogger(__name__)

_PERIOD = 10.0
"""Seconds between two looks at the node."""


class NodeApi(Protocol):
    """The part of the API that the node is read through."""

    def get_node(self, name: str) -> Json:
        """Get a node."""


class CordonReader:
    """Reads which cards are cordoned, and passes on what changes."""

    def __init__(
        self,
        *,
        api: NodeApi,
        node: str,
        names: Names,
        on_change: Callable[[frozenset[str]], None],
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`."""
        self._api = api
        self._node = node
        self._names = names
        self._on_change = on_change
        self._period = spread(_PERIOD)
        self._known: frozenset[str] = frozenset()
        self._readable = True

    def run(self, stop: threading.Event) -> None:
        """Read until *stop* is set."""
        self.look()
        while not stop.wait(self._period):
            self.look()

    def look(self) -> None:
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
            self._on_change(found)
