"""Measures periodically what containers use of the cards."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from agent.cards.card_use import CardUse
from agent.errors import Unavailable
from agent.usage.holdings import Holdings
from agent.usage.join import Measured, join
from agent.usage.overuse import Overuse, OveruseWatch
from agent.usage.owners import Owners

log = logging.getLogger(__name__)

# A look that is older than so many periods says nothing of now: a call of the driver may hang.
_STALE_AFTER = 3


class ReadUse(Protocol):
    """Asks the driver for the use of cards."""

    def __call__(self, uuids: Collection[str], /, *, since: int) -> Mapping[str, CardUse]:
        """Return the use of each card; samples count from *since* on, Unix microseconds."""


class Meter:
    """Keeps the newest measurement, made by a thread of its own."""

    def __init__(  # noqa: PLR0913 -- whom it asks and tells, by keyword
        self,
        *,
        read: ReadUse,
        owners: Owners,
        holdings: Callable[[], Holdings | None],
        period: float,
        on_overuse: Callable[[Overuse], None] = lambda _overuse: None,
        close: Callable[[], None] = lambda: None,
        watch: OveruseWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`.

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
        self._watch = watch or OveruseWatch()
        self._clock = clock
        self._unix = unix
        self._latest: tuple[float, Measured] | None = None
        self._problem = ""
        self._told: set[tuple[str, str]] = set()

    @property
    def measured(self) -> Measured | None:
        """The newest measurement; ``None`` where there is none or it is too old."""
        latest = self._latest
        if latest is None or self._clock() - latest[0] > _STALE_AFTER * self._period:
            return None
        return latest[1]

    def run(self, stop: threading.Event) -> None:
        """Look until *stop* is set."""
        try:
            while not stop.wait(self._period):
                self.look()
        finally:
            self._close()

    def look(self) -> None:
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
        for each in self._watch.look(now, holdings.holders, measured.use):
            self._on_overuse(each)

    def _measure(self, holdings: Holdings) -> Measured:
        """Ask driver, kernel and runtime, and join the answers.

        Raises:
            Unavailable: one of them does not answer.
        """
        since = int((self._unix() - self._period) * 1e6)
        cards = self._read(tuple(holdings.cards), since=since)
        for uuid, each in cards.items():
            for problem in each.problems:
                self._tell(uuid, problem)
        pids = {
            pid
            for use in cards.values()
            for found in (use.process_cores, use.process_memory)
            for pid in found or ()
        }
        return Measured(cards, join(cards, self._owners.find(pids), holdings.holders))

    def _tell(self, uuid: str, problem: str) -> None:
        """Log once what the driver cannot tell of a card."""
        if (uuid, problem) not in self._told:
            self._told.add((uuid, problem))
            log.warning("use is not told", extra={"card": uuid, "reason": problem})
