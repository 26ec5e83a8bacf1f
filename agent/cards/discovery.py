"""Watches the node's cards and their health, in one thread between NVML and the agent.

The first discovery with a card fixes the set of cards until the agent exits: device IDs, snapshot
and checkpoint refer to that set, and IDs that a container holds must stay valid. So a card that
disappears stays listed as unhealthy. A card that is added later is reported in log and status, and
served after a restart of the agent. A restart disturbs no container: the agent builds the snapshot
again from the kubelet's checkpoint.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from agent.cards.inventory import Discovery, reserve_memory
from agent.cards.source import CardSession, CardSource, none_served
from agent.errors import DriverUnloaded, Unavailable
from common.backoff import Backoff, Jitter, by_chance
from contract.cordon import NO_CORDON, Cordon, find_cordoned
from contract.inventory import Card, Inventory, withheld

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardsStatus:
    """The cards and their health at one moment.

    Attributes:
        discovery: the fixed set of cards, and the cards that are left out now; ``None`` before
            the first discovery.
        health: the health of each card of the inventory, by UUID.
        problem: why the cards cannot be read now; empty if they can.
        latecomers: UUIDs of cards that could be served after a restart of the agent.
        unwatched: cards without events, whose health only probes show: the reasons, by UUID.
        cordon: what an admin has cordoned; empty before the first discovery.
    """

    discovery: Discovery | None = None
    health: Mapping[str, CardHealth] = field(default_factory=dict)
    problem: str = ""
    latecomers: tuple[str, ...] = ()
    unwatched: Mapping[str, str] = field(default_factory=dict)
    cordon: Cordon = NO_CORDON

    def change_key(self) -> tuple[object, ...]:
        """Return the parts whose changes are reported to the listener."""
        reasons = {uuid: each.reason for uuid, each in self.health.items()}
        rest = self.problem, self.latecomers, self.unwatched, self.cordon
        return self.discovery, reasons, *rest


class CardListener(Protocol):
    """Receives changes; called on the watch's thread, in order."""

    def cards_changed(self, status: CardsStatus) -> None:
        """Receive a status whose :meth:`CardsStatus.change_key` has changed."""

    def health_changed(self, card: Card, health: CardHealth) -> None:
        """Receive a card that became unhealthy, or healthy again."""

    def event_seen(self, card: Card, fault: CardFault, *, counts: bool) -> None:
        """Receive an event of the driver; *counts* is whether it makes the card unhealthy."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals, in seconds.

    Attributes:
        step: duration of one wait for an event; a stop takes no longer.
        probe: time between two probes of a card.
        renew: age at which a session is replaced while a card does not respond. NVML finds a card
            that was reset or plugged in only in a new session.
        retry: pause before a failed session is tried again, doubled with each failure.
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
        listener: CardListener,
        reserved_memory: int = 0,
        store: FaultStore,
        pace: Pace | None = None,
        now: Callable[[], ClockReading] = _now,
        jitter: Jitter = by_chance,
    ) -> None:
        """Watch the cards of *source*; nothing runs before :meth:`run`.

        *reserved_memory* has the bytes of each card that are not offered.
        """
        self.known = threading.Event()
        """Set once cards are found and each was probed."""
        self._source = source
        self._rules = rules
        self._listener = listener
        self._reserved_memory = reserved_memory
        self._store = store
        self._pace = pace or Pace()
        self._now = now
        self._jitter = jitter
        self._status = CardsStatus()
        self._reported_key = self._status.change_key()
        self._cards: dict[str, Card] = {}
        self._all_probed = False  # whether this session has probed every card
        self._probe_failed = False  # whether the last probe of a card failed
        self._cordon_entries: Sequence[str] = ()
        self._unhealthy: frozenset[str] = frozenset()
        self._changed_at: dict[str, float] = {}  # when other cards were offered, by the cause
        self._probed_at = now().at

    @property
    def status(self) -> CardsStatus:
        """The present status; may be read from any thread."""
        return self._status

    @property
    def inventory(self) -> Inventory | None:
        """The cards, which stay the same after the first discovery; ``None`` before."""
        discovery = self._status.discovery
        return discovery.inventory if discovery and self._cards else None

    @property
    def age(self) -> float:
        """Seconds since the last probe of all cards; grows while a call of NVML hangs."""
        return max(self._now().at - self._probed_at, 0.0)

    def unhealthy(self, uuid: str) -> str:
        """Return the fault of a card; empty without one."""
        health = self._status.health.get(uuid)
        return "not known" if health is None else health.reason

    def withheld(self, uuid: str) -> str:
        """Return why new containers may not get a card, for messages; empty if they may."""
        return withheld(self.unhealthy(uuid), cordoned=uuid in self.cordoned)

    def withheld_cards(self) -> frozenset[str]:
        """Return the UUIDs of the cards that new containers may not get."""
        return frozenset(filter(self.withheld, self._cards))

    def set_cordon(self, entries: Sequence[str]) -> None:
        """Set the entries that name cordoned cards: new containers get none of these cards."""
        self._cordon_entries = entries

    @property
    def cordoned(self) -> frozenset[str]:
        """The UUIDs of the cordoned cards."""
        return self._cordon().uuids

    def _cordon(self) -> Cordon:
        entries = self._cordon_entries
        return find_cordoned(entries, self._cards) if entries and self._cards else NO_CORDON

    def run(self, stop: threading.Event) -> None:
        """Watch until *stop* is set."""
        pauses = Backoff(self._pace.retry, self._pace.retry_most, jitter=self._jitter)
        while not stop.is_set():
            began = self._now().at
            self._all_probed = False
            try:
                with self._source.open() as session:
                    self._use(session, stop)
            except Unavailable as error:
                self._apply_failure(error)
                if self._now().at - began > self._pace.renew:
                    pauses.reset()
                stop.wait(pauses.next())

    def _use(self, session: CardSession, stop: threading.Event) -> None:
        """Use one session until it fails, should be replaced, or *stop* is set."""
        self._apply_discovery(session.discover())
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
            if session.stale or (at - opened >= self._pace.renew and self._needs_new_session()):
                return
            if not session.watching:
                stop.wait(self._pace.step)
            elif event := session.wait(self._pace.step):
                self._apply_event(*event)
            self._update(problem="")  # after the wait: a session whose wait fails has a problem
            self._notify()

    def _apply_discovery(self, found: Discovery) -> None:
        """Fix the set of cards at the first discovery; later update only faults and latecomers."""
        if not self._cards:
            inventory = reserve_memory(found.inventory, self._reserved_memory)
            found = replace(found, inventory=inventory)
            self._update(discovery=found)
            if not found.inventory.cards:
                raise Unavailable(none_served(found))
            self._cards = {card.uuid: card for card in found.inventory.cards}
            self._update(health={uuid: CardHealth() for uuid in self._cards})
            self._log_found(found)
            self._restore_faults()
            return
        indices = {card.index for card in self._cards.values()}
        before = self._status.discovery or found
        self._update(
            discovery=replace(
                before,
                driver=found.driver,
                # The faults of a served card are part of its health.
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

    def _restore_faults(self) -> None:
        """Restore the faults that an earlier agent saved, if they count by the present rules."""
        now = self._now().at
        for uuid, health in self._store.load().items():
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
        """Probe every card."""
        self._probe_failed = False
        for uuid in self._cards:
            result = session.probe(uuid)
            before, now = self._status.health[uuid], self._now()
            if isinstance(result, CardFault):
                self._probe_failed |= result.kind is not FaultKind.MIG
                self._set_health(uuid, after_fault(before, result, now, self._rules))
            else:
                self._set_health(uuid, after_probe(before, result, now, self._rules))
        self._probed_at = self._now().at
        self._all_probed = True
        self._store.save(self._status.health)
        self._notify()
        self.known.set()

    def _apply_event(self, uuids: tuple[str, ...], fault: CardFault) -> None:
        """Log an event of the driver, notify the listener, and update the cards' health."""
        counts = self._rules.counts(fault)
        for uuid in uuids:
            log.log(
                logging.WARNING if counts else logging.INFO,
                "card event" if counts else "card event caused by an application",
                extra={"card": uuid, "fault": fault.text},
            )
            self._listener.event_seen(self._cards[uuid], fault, counts=counts)
            before = self._status.health[uuid]
            self._set_health(uuid, after_fault(before, fault, self._now(), self._rules))
        self._store.save(self._status.health)

    def _apply_failure(self, error: Unavailable) -> None:
        """Store and log that the cards cannot be read.

        A session that had probed all cards may have failed because of one lost card; the next
        session, a second later, finds it. If a session cannot probe, all cards become unhealthy.
        """
        if str(error) != self._status.problem:
            log.warning("cards cannot be read", extra={"reason": str(error)})
        self._update(problem=str(error))
        if not self._all_probed:
            kind = FaultKind.DRIVER if isinstance(error, DriverUnloaded) else FaultKind.NVML
            fault, now = CardFault(kind, str(error)), self._now()
            for uuid in self._cards:
                before = self._status.health[uuid]
                self._set_health(uuid, after_fault(before, fault, now, self._rules))
        self._notify()

    def _set_health(self, uuid: str, health: CardHealth) -> None:
        """Store a card's health; notify the listener if it became healthy or unhealthy."""
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
        self._listener.health_changed(card, health)

    def _apply_cordon(self) -> None:
        """Log which cards are cordoned, and which entries name none, if that has changed."""
        before, cordon = self._status.cordon, self._cordon()
        if cordon.uuids != before.uuids:
            log.info("cordoned cards", extra={"cards": sorted(cordon.uuids)})
        if cordon.unknown and cordon.unknown != before.unknown:
            entries = [*cordon.unknown]
            log.warning("entries of gpu-cordoned name no card", extra={"entries": entries})
        self._update(cordon=cordon)
        now = self._now().at
        if cordon.uuids != before.uuids:
            self._changed_at["cordon"] = now
        unhealthy = frozenset(filter(self.unhealthy, self._cards))
        if unhealthy != self._unhealthy:
            self._unhealthy, self._changed_at["health"] = unhealthy, now

    def offer_age(self, cause: str) -> float:
        """Return the seconds since other cards were offered because of ``cordon`` or ``health``.

        It is not a number if they were not.
        """
        return self._now().at - self._changed_at.get(cause, math.nan)

    def _needs_new_session(self) -> bool:
        """Return whether a card of the node does not respond."""
        discovery = self._status.discovery
        return self._probe_failed or bool(discovery and discovery.faults)

    def _update(self, **changes: object) -> None:
        self._status = replace(self._status, **changes)  # type: ignore[arg-type]

    def _notify(self) -> None:
        """Notify the listener if something has changed since the last notification."""
        self._apply_cordon()
        key = self._status.change_key()
        if key != self._reported_key:
            self._reported_key = key
            self._listener.cards_changed(self._status)
