"""Watches the node's cards and their health, in one thread between NVML and the agent.

The set of cards is fixed once the first is found, for the life of the agent: device IDs,
the record and the kubelet's own record all speak of that set, and IDs that a container
holds must stay known. So a card that disappears stays listed, unhealthy. A card that is added
later is shown in log and status, and served after a restart of the agent. A restart disturbs no
container: the record is built again from the kubelet's checkpoint.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from agent.cards.fault_store import FaultStore
from agent.cards.health import (
    CardFault,
    CardHealth,
    ClockReading,
    FaultKind,
    Rules,
    after_fault,
    after_probe,
)
from agent.cards.inventory import Discovery
from agent.cards.source import CardSession, CardSource, none_served
from agent.errors import DriverUnloaded, Unavailable
from common.backoff import Backoff, Jitter, by_chance
from contract.cordon import REASON
from contract.inventory import Card, Inventory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardsStatus:
    """The cards and their health at one moment.

    Attributes:
        discovery: the cards, fixed once found, and what is left out now; ``None`` before.
        health: the health of each card of the inventory, by UUID.
        problem: why cards cannot be looked at now, empty while they can.
        latecomers: UUIDs of cards that could be served after a restart of the agent.
        unwatched: cards without events, whose health shows in probes alone, and why.
    """

    discovery: Discovery | None = None
    health: Mapping[str, CardHealth] = field(default_factory=dict)
    problem: str = ""
    latecomers: tuple[str, ...] = ()
    unwatched: Mapping[str, str] = field(default_factory=dict)

    def change_key(self) -> tuple[object, ...]:
        """Return the parts of which observers are told when they change."""
        told = {uuid: each.reason for uuid, each in self.health.items()}
        return self.discovery, told, self.problem, self.latecomers, self.unwatched


class CardListener(Protocol):
    """Receives changes; called on the watch's thread, in order."""

    def cards_changed(self, status: CardsStatus) -> None:
        """Receive a status of which :meth:`CardsStatus.change_key` has changed."""

    def health_changed(self, card: Card, health: CardHealth) -> None:
        """Receive a card that became unhealthy, or healthy again."""

    def event_seen(self, card: Card, fault: CardFault, *, counts: bool) -> None:
        """Receive an event of the driver; *counts*: it makes the card unhealthy."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals, in seconds.

    Attributes:
        step: how long one wait for an event lasts; a stop takes no longer.
        probe: between two probes of a card.
        renew: after which a session ends and another starts while a card does not answer.
            NVML finds a card that was reset or plugged in only in a new session.
        retry: before a failed session is tried again, doubled with each failure.
        retry_most: the longest such pause.
    """

    step: float = 0.5
    probe: float = 10.0
    renew: float = 60.0
    retry: float = 1.0
    retry_most: float = 60.0


def _now() -> ClockReading:
    return ClockReading(time.monotonic(), datetime.now(UTC))


class CardWatch:
    """The node's cards and their health."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        source: CardSource,
        *,
        rules: Rules,
        observer: CardListener,
        kept: FaultStore,
        pace: Pace | None = None,
        now: Callable[[], ClockReading] = _now,
        jitter: Jitter = by_chance,
    ) -> None:
        """Watch the cards of *source*; nothing runs before :meth:`run`."""
        self.known = threading.Event()
        """Set once there are cards and each was probed."""
        self._source = source
        self._rules = rules
        self._observer = observer
        self._kept = kept
        self._pace = pace or Pace()
        self._now = now
        self._jitter = jitter
        self._status = CardsStatus()
        self._told = self._status.change_key()
        self._cards: dict[str, Card] = {}
        self._answered = False  # whether this session has probed every card
        self._deaf = False  # whether a card did not answer its last probe
        self._cordoned: frozenset[str] = frozenset()
        self._looked = now().at

    @property
    def status(self) -> CardsStatus:
        """The present status; may be read from any thread."""
        return self._status

    @property
    def inventory(self) -> Inventory | None:
        """The cards, the same ones from the first discovery on; ``None`` before."""
        discovery = self._status.discovery
        return discovery.inventory if discovery and self._cards else None

    @property
    def age(self) -> float:
        """Seconds since the cards were last looked at: grows when a call of NVML hangs."""
        return max(self._now().at - self._looked, 0.0)

    def unhealthy(self, uuid: str) -> str:
        """Return why new containers may not get a card; empty while they may."""
        health = self._status.health.get(uuid)
        reason = "not known" if health is None else health.reason
        return reason or (REASON if uuid in self._cordoned else "")

    def unhealthy_cards(self) -> frozenset[str]:
        """Return the UUIDs of the cards that new containers may not get."""
        return frozenset(filter(self.unhealthy, self._cards))

    def cordon(self, uuids: frozenset[str]) -> None:
        """Set the cordoned cards: new containers get none of them."""
        self._cordoned = uuids

    def run(self, stop: threading.Event) -> None:
        """Watch until *stop* is set."""
        pauses = Backoff(self._pace.retry, self._pace.retry_most, jitter=self._jitter)
        while not stop.is_set():
            began = self._now().at
            self._answered = False
            try:
                with self._source.open() as session:
                    self._serve(session, stop)
            except Unavailable as error:
                self._failed(error)
                if self._now().at - began > self._pace.renew:
                    pauses.reset()
                stop.wait(pauses.next())

    def _serve(self, session: CardSession, stop: threading.Event) -> None:
        """Use one session until it fails, should be renewed, or *stop* is set."""
        self._note_found(session.discover())
        unwatched = session.watch(tuple(self._cards))
        if unwatched != self._status.unwatched:
            log.info("cards without events", extra={"cards": unwatched})
        self._update(unwatched=unwatched)
        opened = self._now().at
        probed: float | None = None
        while not stop.is_set():
            at = self._now().at
            if probed is None or at - probed >= self._pace.probe:
                probed = at
                self._probe(session)
            if at - opened >= self._pace.renew and self._missing():
                return
            if not session.watching:
                stop.wait(self._pace.step)
            elif event := session.wait(self._pace.step):
                self._event(*event)
            self._update(problem="")  # not before a wait: a session that can only probe is ill
            self._tell()

    def _note_found(self, found: Discovery) -> None:
        """Fix the set of cards at the first discovery; later, update faults and latecomers only."""
        if not self._cards:
            self._update(discovery=found)
            if not found.inventory.cards:
                raise Unavailable(none_served(found))
            self._cards = {card.uuid: card for card in found.inventory.cards}
            self._update(health={uuid: CardHealth() for uuid in self._cards})
            self._log_found(found)
            self._recall()
            return
        indices = {card.index for card in self._cards.values()}
        before = self._status.discovery or found
        self._update(
            discovery=replace(
                before,
                driver=found.driver,
                # A card of ours that is ill says so in its health.
                faults=tuple(
                    each
                    for each in found.faults
                    if each.uuid not in self._cards
                    and (each.uuid is not None or each.index not in indices)
                ),
                skipped=tuple(each for each in found.skipped if each.uuid not in self._cards),
            )
        )
        late = tuple(card.uuid for card in found.inventory.cards if card.uuid not in self._cards)
        if late and late != self._status.latecomers:
            log.warning("cards that can be served after a restart", extra={"cards": late})
        self._update(latecomers=late)

    def _recall(self) -> None:
        """Take over what the agent before knew of the cards, as far as it counts now."""
        now = self._now().at
        for uuid, health in self._kept.load().items():
            fault = health.fault
            if uuid in self._cards and fault is not None and self._rules.counts(fault):
                self._set_health(uuid, replace(health, last=min(health.last, now)))

    def _log_found(self, found: Discovery) -> None:
        log.info(
            "cards found",
            extra={
                "cards": {card.uuid: card.model for card in found.inventory.cards},
                "driver": found.driver,
                "unknown_links": found.inventory.unlinked(),
            },
        )
        for each in (*found.faults, *found.skipped):
            log.warning(
                "card left out",
                extra={"index": each.index, "card": each.uuid, "reason": each.reason},
            )

    def _probe(self, session: CardSession) -> None:
        """Ask every card how it is."""
        self._deaf = False
        for uuid in self._cards:
            answer = session.probe(uuid)
            before, now = self._status.health[uuid], self._now()
            if isinstance(answer, CardFault):
                self._deaf |= answer.kind is not FaultKind.MIG
                self._set_health(uuid, after_fault(before, answer, now, self._rules))
            else:
                self._set_health(uuid, after_probe(before, answer, now, self._rules))
        self._looked = self._now().at
        self._answered = True
        self._kept.save(self._status.health)
        self._tell()
        self.known.set()

    def _event(self, uuid: str, fault: CardFault) -> None:
        """Log an event of the driver, tell the observer, and update the card's health."""
        counts = self._rules.counts(fault)
        log.log(
            logging.WARNING if counts else logging.INFO,
            "card event" if counts else "card event, an application's",
            extra={"card": uuid, "fault": fault.text},
        )
        self._observer.event_seen(self._cards[uuid], fault, counts=counts)
        before = self._status.health[uuid]
        self._set_health(uuid, after_fault(before, fault, self._now(), self._rules))
        self._kept.save(self._status.health)

    def _failed(self, error: Unavailable) -> None:
        """Record that the cards cannot be looked at.

        A session that has answered may have failed for one lost card: the next one, a
        second later, tells which. Where no session answers, no card counts as healthy.
        """
        if str(error) != self._status.problem:
            log.warning("cards cannot be looked at", extra={"reason": str(error)})
        self._update(problem=str(error))
        if not self._answered:
            kind = FaultKind.DRIVER if isinstance(error, DriverUnloaded) else FaultKind.NVML
            fault, now = CardFault(kind, str(error)), self._now()
            for uuid in self._cards:
                before = self._status.health[uuid]
                self._set_health(uuid, after_fault(before, fault, now, self._rules))
        self._tell()

    def _set_health(self, uuid: str, health: CardHealth) -> None:
        """Store a card's health; tell the observer if it became healthy or unhealthy."""
        before = self._status.health[uuid]
        self._update(health={**self._status.health, uuid: health})
        if before.healthy == health.healthy:
            return
        card = self._cards[uuid]
        more = {"card": uuid, "index": card.index}
        if health.healthy:
            log.info("card healthy again", extra={**more, "was": before.reason})
        else:
            log.warning("card unhealthy", extra={**more, "reason": health.reason})
        self._observer.health_changed(card, health)

    def _missing(self) -> bool:
        """Whether a card of the node does not answer."""
        discovery = self._status.discovery
        return self._deaf or bool(discovery and discovery.faults)

    def _update(self, **changes: object) -> None:
        self._status = replace(self._status, **changes)  # type: ignore[arg-type]

    def _tell(self) -> None:
        """Tell the observer if something has changed since it was last told."""
        news = self._status.change_key()
        if news != self._told:
            self._told = news
            self._observer.cards_changed(self._status)
