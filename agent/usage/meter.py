"""Measures the use of cards by containers periodically."""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping

from agent.cards.card_use import CardUse
from agent.errors import Unavailable
from agent.holdings.holding import NodeHoldings
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import Cri
from agent.usage.join import NodeMeasurement, Overuse, OveruseWatch, ProcessOwner, join

log = logging.getLogger(__name__)

# A measurement older than so many periods is out of date: a call of the driver may hang.
_STALE_AFTER = 3
_RESPONSE_SECONDS = 2.0


class Owners:
    """Finds the containers of processes. Calls the runtime once for each container."""

    def __init__(self, processes: Cgroups, runtime: Cri) -> None:
        self._processes = processes
        self._runtime = runtime
        self._known: dict[str, ProcessOwner] = {}

    def find(self, pids: Collection[int]) -> dict[int, ProcessOwner]:
        """Return the container of each process that is in one.

        Raises:
            Unavailable: the kernel or the runtime does not respond, or the agent sees only its own
                processes. Zeros would be wrong then.
        """
        if os.getpid() == 1:  # the first process of a PID namespace sees no process of the host
            raise Unavailable("the host's processes are not visible: the agent needs hostPID")
        containers = self._processes.containers_of(pids)
        there = {each.container_id for each in containers.values()}
        self._known = {each: self._known[each] for each in there & self._known.keys()}
        for container_id in sorted(there - self._known.keys()):
            info = self._runtime.container(container_id, within=_RESPONSE_SECONDS)
            if info is not None:
                self._known[container_id] = ProcessOwner(info.pod_uid, info.name)
        return {
            pid: self._known[each.container_id]
            for pid, each in containers.items()
            if each.container_id in self._known
        }


class Meter:
    """Keeps the newest measurement, made by a thread of its own."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        read: Callable[[Collection[str], int], Mapping[str, CardUse]],
        owners: Owners,
        holdings: Callable[[], NodeHoldings | None],
        period: float,
        on_overuse: Callable[[Overuse], None] = lambda _overuse: None,
        close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is measured before :meth:`run`.

        *read* returns the use of cards from samples after a time, Unix microseconds. *holdings*
        returns ``None`` before the first snapshot. *period* is in seconds; *clock* returns
        monotonic seconds and *unix* those since 1970. *close* closes the connections of *owners*.
        *on_overuse* is called once for a container that uses more than it holds.
        """
        self._read = read
        self._owners = owners
        self._holdings = holdings
        self._period = period
        self._on_overuse = on_overuse
        self._close = close
        self._watch = OveruseWatch()
        self._clock = clock
        self._unix = unix
        self._latest: tuple[float, NodeMeasurement] | None = None
        self._problem = ""
        self._logged: set[tuple[str, str]] = set()

    @property
    def measured(self) -> NodeMeasurement | None:
        """The newest measurement; ``None`` if there is none or it is too old."""
        latest = self._latest
        if latest is None or self._clock() - latest[0] > _STALE_AFTER * self._period:
            return None
        return latest[1]

    def run(self, stop: threading.Event) -> None:
        """Measure periodically until *stop* is set."""
        try:
            while not stop.wait(self._period):
                self.measure()
        finally:
            self._close()

    def measure(self) -> None:
        """Measure once."""
        holdings = self._holdings()
        if holdings is None:
            self._latest = None
            return
        try:
            measured = self._measure(holdings)
        except Unavailable as error:
            if str(error) != self._problem:
                log.warning("use cannot be measured", extra={"reason": str(error)})
            self._problem, self._latest = str(error), None
            self._watch.interrupt()
            return
        if self._problem:
            log.info("use is measured again")
            self._problem = ""
        now = self._clock()
        self._latest = now, measured
        for each in self._watch.find(now, holdings, measured.use):
            self._on_overuse(each)

    def _measure(self, holdings: NodeHoldings) -> NodeMeasurement:
        """Read from driver, kernel and runtime, and join the results.

        Raises:
            Unavailable: one of them does not respond.
        """
        since = int((self._unix() - self._period) * 1e6)
        cards = self._read(tuple(holdings.totals), since)
        for uuid, each in cards.items():
            for problem in each.problems:
                self._log_once(uuid, problem)
        pids = {
            pid
            for use in cards.values()
            for found in (use.process_cores, use.process_memory)
            for pid in found or ()
        }
        return NodeMeasurement(cards, join(cards, self._owners.find(pids), holdings))

    def _log_once(self, uuid: str, problem: str) -> None:
        """Log once that the driver does not report a value of a card."""
        if (uuid, problem) not in self._logged:
            self._logged.add((uuid, problem))
            log.warning("the driver does not report use", extra={"card": uuid, "reason": problem})
