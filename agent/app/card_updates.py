"""Forward changes of the cards to metrics, Events of the node, device lists and the inventory.

:mod:`agent.cards.discovery` logs the changes itself. Only cards that are served twice are logged
here, because two threads know one half of it each.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from agent.cards.discovery import CardsStatus
from agent.cards.health import CardFault, CardHealth
from agent.cards.inventory import Discovery, UnservedCard
from agent.observability.metrics import Metrics
from common.apiserver.events import EventSubject, Notice
from contract.cordon import describe_unknown
from contract.inventory import Card, Inventory
from contract.names import Names
from contract.other_systems import NVIDIA_DRIVER

log = logging.getLogger(__name__)


_DEVICE_PLUGIN = (
    "NVIDIA's device plugin (with the GPU Operator by the label "
    "nvidia.com/gpu.deploy.device-plugin=false)"
)
_DRA_DRIVER = "NVIDIA's DRA driver (by its chart's resources.gpus.enabled=false)"


class CardUpdates:
    """A :class:`agent.cards.discovery.CardListener` that forwards each change."""

    def __init__(
        self,
        *,
        node: str,
        names: Names,
        metrics: Metrics,
        send_event: Callable[[Notice], None],
        on_change: Callable[[], None],
    ) -> None:
        """Start without cards; *on_change* publishes their health again."""
        # As in the kubelet's own Events the node's name takes the place of its UID;
        # ``kubectl describe node`` looks for both.
        self._node = EventSubject("Node", "", node, node)
        self._names = names
        self._metrics = metrics
        self._send_event = send_event
        self._on_change = on_change
        self._reported: set[Notice] = set()
        self._cordoned: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._serves = False
        self._others: Mapping[str, int] = {}
        self._served_twice: Mapping[str, int] = {}

    def cards_changed(self, status: CardsStatus) -> None:
        """Count the cards by state; send Events on those that are not served, and wrong cordons."""
        found = status.discovery or Discovery(Inventory(()))
        served, left_out = found.inventory.cards, (*found.faults, *found.skipped)
        for card in served:
            health = status.health.get(card.uuid)
            self._gauge(card, healthy=health is not None and health.healthy)
            cordoned = self._metrics.card_cordoned.labels(card.uuid, str(card.index), card.model)
            cordoned.set(card.uuid in status.cordon.uuids)
        self._cordoned = status.cordon.uuids
        metrics = self._metrics
        metrics.cards.labels("served").set(len(served))
        metrics.cards.labels("faulty").set(len(found.faults))
        metrics.cards.labels("mig").set(len(found.skipped))
        metrics.cards.labels("late").set(len(status.latecomers))
        metrics.cards_problem.set(status.problem)
        metrics.cards_unwatched.set(len(status.unwatched))
        notices = {self._left_out(each) for each in left_out}
        notices |= {self._late(uuid) for uuid in status.latecomers}
        if unknown := status.cordon.unknown:
            text = describe_unknown(unknown, self._names)
            notices.add(Notice(self._node, "GPUCordonUnknown", text))
        if status.problem and not served:
            notices.add(Notice(self._node, "GPUsUnavailable", status.problem))
        for notice in sorted(notices - self._reported, key=lambda each: each.message):
            self._send_event(notice)
        self._reported = notices
        with self._lock:
            self._serves = bool(served)
            self._compare()
        self._on_change()

    def file_unusable(self, reason: str) -> None:
        """Receive why an edited cards file cannot be used."""
        text = f"the edited cards file cannot be used, the one before applies: {reason}"
        self._send_event(Notice(self._node, "GPUCardsFileNotUsed", text))

    def others_changed(self, others: Mapping[str, int]) -> None:
        """Receive what NVIDIA's programs offer here: counts by resource, or by driver."""
        with self._lock:
            self._others = others
            self._compare()

    def _compare(self) -> None:
        """Report cards that are served twice: the others' allocations are not counted."""
        twice = self._others if self._serves else {}
        self._metrics.cards_served_twice.set(sum(twice.values()))
        if twice != self._served_twice and twice:
            log.error("cards are served twice", extra={"offered": dict(twice)})
            offered = ", ".join(f"{name}: {count}" for name, count in sorted(twice.items()))
            others = {
                _DRA_DRIVER if name == NVIDIA_DRIVER else _DEVICE_PLUGIN for name in sorted(twice)
            }
            text = (
                f"another program offers this node's cards as {offered}, and its allocations are "
                f"not counted here: turn off on this node {' and '.join(sorted(others))}"
            )
            self._send_event(Notice(self._node, "GPUsServedTwice", text))
        self._served_twice = twice

    def health_changed(self, card: Card, health: CardHealth) -> None:
        """Send an Event on a card that became unhealthy or healthy."""
        self._gauge(card, healthy=health.healthy)
        name = f"card {card.index} ({card.uuid}, {card.model})"
        if health.fault is None:
            text = f"{name} is healthy again: new containers may get it"
            if card.uuid in self._cordoned:
                text = f"{name} is healthy again, and cordoned: no new container gets it"
            self._send_event(Notice(self._node, "GPUHealthy", text, warning=False))
        else:
            # Without the time: if it happens again, it is the same Event with a higher count.
            text = f"{name}: {health.fault.text}: no new container gets it, running ones stay"
            self._send_event(Notice(self._node, "GPUUnhealthy", text))
        self._on_change()

    def event_seen(self, card: Card, fault: CardFault, *, counts: bool) -> None:
        """Count an event of the driver."""
        xid = "" if fault.xid is None else str(fault.xid)
        cause = "card" if counts else "application"
        self._metrics.card_events.labels(card.uuid, fault.kind.value, xid, cause).inc()

    def _gauge(self, card: Card, *, healthy: bool) -> None:
        self._metrics.card_healthy.labels(card.uuid, str(card.index), card.model).set(healthy)

    def _left_out(self, each: UnservedCard) -> Notice:
        name = f"card {each.index}" + (f" ({each.uuid})" if each.uuid else "")
        return Notice(self._node, "GPULeftOut", f"{name} is not served: {each.reason}")

    def _late(self, uuid: str) -> Notice:
        text = f"card {uuid} can be served once the agent is started again"
        return Notice(self._node, "GPULeftOut", text)
