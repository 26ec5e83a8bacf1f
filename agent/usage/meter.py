"""Measures periodically what containers use of the cards."""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping

from agent.cards.card_use import CardUse
from agent.errors import Unavailable
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import Cri
from agent.usage.holdings import Holdings
from agent.usage.join import NodeMeasurement, Overuse, OveruseWatch, ProcessOwner, join

log = logging.getLogger(__name__)

# A look that is older than so many periods says nothing of now: a call of the driver may hang.
_STALE_AFTER = 3
_ANSWER_SECONDS = 2.0


class Owners:
    """Finds the containers of processes. Asks the runtime once for each container."""

    def __init__(self, processes: Cgroups, runtime: Cri) -> None:
        self._processes = processes
        self._runtime = runtime
        self._known: dict[str, ProcessOwner] = {}

    def find(self, pids: Collection[int]) -> dict[int, ProcessOwner]:
        """Return the container of each process that is in one.

        Raises:
            Unavailable: kernel or runtime do not answer, or the agent does not see processes
                other than its own. Nothing is known then: zeros would be lies.
        """
        if os.getpid() == 1:  # the first process of a PID namespace sees no process of the host
            raise Unavailable("the host's processes are not visible: the agent needs hostPID")
        containers = self._processes.containers_of(pids)
        there = {each.container_id for each in containers.values()}
        self._known = {each: self._known[each] for each in there & self._known.keys()}
        for container_id in sorted(there - self._known.keys()):
            info = self._runtime.container(container_id, within=_ANSWER_SECONDS)
            if info is not None:
                self._known[container_id] = ProcessOwner(info.pod_uid, info.name)
        return {
            pid: self._known[each.container_id]
            for pid, each in containers.items()
            if each.container_id in self._known
        }


class Meter:
    """Keeps the newest measurement, made by a thread of its own."""

    def __init__(  # noqa: PLR0913 -- whom it asks and tells, by keyword
        self,
        *,
        read: Callable[[Collection[str], int], Mapping[str, CardUse]],
        owners: Owners,
        holdings: Callable[[], Holdings | None],
        period: float,
        on_overuse: Callable[[Overuse], None] = lambda _overuse: None,
        close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`.

        *read* asks the driver for the use of cards, in samples from a time on, Unix microseconds.
        *holdings* gives ``None`` while it is not known who holds what. *period* is in seconds,
        *clock* gives monotonic ones and *unix* those since 1970. *close* closes what *owners*
        asks; *on_overuse* is told once of a container that takes more than it holds.
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
        self._told: set[tuple[str, str]] = set()

    @property
    def measured(self) -> NodeMeasurement | None:
        """The newest measurement; ``None`` where there is none or it is too old."""
        latest = self._latest
        if latest is None or self._clock() - latest[0] > _STALE_AFTER * self._period:
            return None
        return latest[1]

    def run(self, stop: threading.Event) -> None:
        """Look until *stop* is set."""
        try:
            while not stop.wait(self._period):
                self.measure()
        finally:
            self._close()

    def measure(self) -> None:
        """Look once."""
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
        for each in self._watch.find(now, holdings.holders, measured.use):
            self._on_overuse(each)

    def _measure(self, holdings: Holdings) -> NodeMeasurement:
        """Ask driver, kernel and runtime, and join the answers.

        Raises:
            Unavailable: one of them does not answer.
        """
        since = int((self._unix() - self._period) * 1e6)
        cards = self._read(tuple(holdings.cards), since)
        for uuid, each in cards.items():
            for problem in each.problems:
                self._tell(uuid, problem)
        pids = {
            pid
            for use in cards.values()
            for found in (use.process_cores, use.process_memory)
            for pid in found or ()
        }
        return NodeMeasurement(cards, join(cards, self._owners.find(pids), holdings.holders))

    def _tell(self, uuid: str, problem: str) -> None:
        """Log once what the driver cannot tell of a card."""
        if (uuid, problem) not in self._told:
            self._told.add((uuid, problem))
            log.warning("use is not told", extra={"card": uuid, "reason": problem})
