"""Reads this node's own object periodically, in a thread.

It shows which cards an admin has cordoned, and whether NVIDIA's device plugin offers the cards,
too. Whether NVIDIA's driver of Dynamic Resource Allocation does so is in its ResourceSlices.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from agent.kubernetes_api.client import Api, Json
from common.apiserver.errors import REQUEST_ERRORS
from common.backoff import spread
from contract.cordon import read_cordon
from contract.names import Names
from contract.other_systems import NVIDIA_DRIVER, DriverDevices, count_devices, count_offered

log = logging.getLogger(__name__)


_SLICES_SECONDS = 60.0
"""How often slices are listed: a driver of another system does not come and go."""


class NodeReader:
    """Reads the cordoned cards, and the devices of other programs, and reports changes."""

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is read before :meth:`run`.

        *on_cordon* is called with the entries that name cordoned cards, *on_others* with the number
        of devices that NVIDIA's programs offer, by resource or driver: with *mig* of MIG instances,
        too.
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
        self._clock = clock
        self._devices = DriverDevices()
        self._slices_listed = -math.inf
        self._slices_readable = True

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
            self._known = found
            self._on_cordon(found)
        self._count_devices()
        allocatable = (obj.get("status") or {}).get("allocatable") or {}
        others = count_offered(allocatable, mig=self._mig) | self._devices.offered(mig=self._mig)
        if others != self._others:
            self._others = others
            self._on_others(others)

    def _count_devices(self) -> None:
        """Count the devices of NVIDIA's driver if that is due; else the last count stays."""
        now = self._clock()
        if now - self._slices_listed < _SLICES_SECONDS:
            return
        self._slices_listed = now
        try:
            slices = self._api.list_slices(self._node, NVIDIA_DRIVER)
        except REQUEST_ERRORS as error:
            if self._slices_readable:
                more = {"driver": NVIDIA_DRIVER, "reason": str(error)}
                log.warning("slices of another driver cannot be read", extra=more)
            self._slices_readable = False
            return
        self._slices_readable = True
        self._devices = count_devices(slices).get(self._node, DriverDevices())
