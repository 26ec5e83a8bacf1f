"""Reads this node's own object periodically, in a thread.

It shows which cards an admin has cordoned, and whether another device plugin offers the cards, too.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from agent.kubernetes_api.client import Api, Json
from common.apiserver.errors import REQUEST_ERRORS
from common.backoff import spread
from contract.cordon import read_cordon
from contract.names import Names
from contract.other_systems import MIG_PREFIX, NVIDIA

log = logging.getLogger(__name__)


class NodeReader:
    """Reads the cordoned cards, and the devices of other plugins, and reports changes."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        api: Api,
        node: str,
        names: Names,
        on_cordon: Callable[[Sequence[str]], None],
        on_others: Callable[[Mapping[str, int]], None],
        on_read: Callable[[Json], None] = lambda _node: None,
        mig: bool = False,
        period: float = 10.0,
    ) -> None:
        """Prepare; nothing is read before :meth:`run`.

        *on_cordon* is called with the entries that name cordoned cards, *on_others* with the number
        of allocatable devices of other plugins, by resource: with *mig* of MIG instances, too.
        *on_read* is called with the node each time, every *period* seconds.
        """
        self._on_read = on_read
        self._mig = mig
        self._api = api
        self._node = node
        self._names = names
        self._on_cordon = on_cordon
        self._on_others = on_others
        self._period = spread(period)
        self._known: Sequence[str] = ()
        self._others: Mapping[str, int] = {}
        self._readable = True

    def run(self, stop: threading.Event) -> None:
        """Read until *stop* is set."""
        self.read()
        while not stop.wait(self._period):
            self.read()

    def read(self) -> None:
        """Read once; if that fails, the last known values stay."""
        try:
            obj = self._api.get_node(self._node)
        except REQUEST_ERRORS as error:
            if self._readable:
                more = {"node": self._node, "reason": str(error)}
                log.warning("cordoned cards cannot be read", extra=more)
            self._readable = False
            return
        self._readable = True
        self._on_read(obj)
        found = read_cordon((obj.get("metadata") or {}).get("annotations") or {}, self._names)
        if found != self._known:
            log.info("cordoned cards", extra={"cards": found})
            self._known = found
            self._on_cordon(found)
        others = _offered((obj.get("status") or {}).get("allocatable") or {}, mig=self._mig)
        if others != self._others:
            self._others = others
            self._on_others(others)


def _offered(allocatable: Mapping[str, str], *, mig: bool) -> dict[str, int]:
    """Return the number of allocatable cards under another plugin's resource names."""
    names = [name for name in allocatable if mig and name.startswith(MIG_PREFIX)]
    counts = {name: allocatable.get(name, "0") for name in (*NVIDIA, *names)}
    return {name: int(each) for name, each in counts.items() if each.isdecimal() and int(each)}
