"""The node's cards as the node shows them: an annotation and a label, kept up by a thread."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from agent.kubernetes_api.node_label import model_label
from common.backoff import Backoff, spread
from contract.inventory import Amounts, Card, Inventory, PublishedInventory, encode_inventory
from contract.resource import Resource

log = logging.getLogger(__name__)


class NodeApi(Protocol):
    """The part of the API that the inventory is written through."""

    def patch_node(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node."""


@dataclass(frozen=True, slots=True)
class InventoryPace:
    """How often, in seconds.

    Attributes:
        write: between two writes, whatever changes.
        freed: between two writes of which the later one shows more to be had: somebody waits
            for that.
        look: between two looks, whether or not anybody tells of a change.
        settle: between two looks that found nothing new, however often a change is told of.
        renew: after which the same is written again: a node may have been deleted and made anew.
        retry: before a write that failed is tried again, doubled with each failure.
        retry_most: the longest such pause.
    """

    write: float = 10.0
    freed: float = 1.0
    look: float = 10.0
    settle: float = 1.0
    renew: float = 300.0
    retry: float = 1.0
    retry_most: float = 60.0


def survey(
    inventory: Inventory,
    *,
    block: int,
    unhealthy: Callable[[str], str],
    free: Mapping[Resource, Mapping[str, int]],
) -> PublishedInventory:
    """Put together what the node shows.

    *block* is in bytes. *unhealthy* says why a card, by UUID, is not given out, empty where it is;
    *free* has the places of each card that nobody holds.
    """
    return PublishedInventory(
        block,
        tuple(
            Card(card.uuid, card.index, card.model, card.memory, card.numa, unhealthy(card.uuid))
            for card in inventory.cards
        ),
        inventory.links,
        tuple(
            Amounts(free[Resource.CORE][card.uuid], free[Resource.MEMORY][card.uuid])
            for card in inventory.cards
        ),
    )


def _is_more(before: PublishedInventory, after: PublishedInventory) -> bool:
    """Return whether of any card more can be had than before."""
    known = {card.uuid: (card, free) for card, free in zip(before.cards, before.free, strict=True)}
    for card, free in zip(after.cards, after.free, strict=True):
        if card.uuid not in known:
            return True
        old, was_free = known[card.uuid]
        if (old.unhealthy and not card.unhealthy) or not was_free.covers(free):
            return True
    return False


class InventoryWriter:
    """Writes the newest inventory: soon after a change, never more often than its pace allows."""

    def __init__(  # noqa: PLR0913 -- where to, what, how often, by keyword
        self,
        *,
        api: NodeApi,
        node: str,
        annotation: str,
        label: str,
        look: Callable[[], PublishedInventory | None],
        pace: InventoryPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """Prepare; nothing is written before :meth:`run`.

        *look* gives the inventory as it is now, ``None`` while it is not known. *on_result* is told
        ``written`` or ``retried``.
        """
        self._api = api
        self._node = node
        self._annotation = annotation
        self._label = label
        self._look = look
        self._pace = pace = pace or InventoryPace()
        self._clock = clock
        self._on_result = on_result
        self._changed = threading.Condition()
        self._stopping = False
        self._told = False
        self._retries = Backoff(pace.retry, pace.retry_most)
        self._renew = spread(pace.renew)
        self._shown: PublishedInventory | None = None
        self._written_at = 0.0

    def poke(self) -> None:
        """Report that something may have changed."""
        with self._changed:
            self._told = True
            self._changed.notify()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Write until stopped."""
        pause = 0.0
        while self._next(pause):
            pause = self.write_due()

    def write_due(self) -> float:
        """Look, write what is due, and return for how many seconds not to look again."""
        pace, now, found = self._pace, self._clock(), self._look()
        shown, age = self._shown, now - self._written_at
        if found is None or (found == shown and age < self._renew):
            return pace.settle
        if shown is not None and age < pace.write and not _is_more(shown, found):
            self.poke()  # it is still to be written
            return min(pace.freed, pace.write - age)
        if not self._write(found):
            self.poke()
            return self._retries.next()
        self._retries.reset()
        self._shown, self._written_at = found, now
        return min(pace.freed, pace.write)

    def _next(self, pause: float) -> bool:
        """Wait out *pause*, then for a change, or until it is time to look; tell whether to go on.

        A change that is told of from here on is seen by the look that follows.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, pause)
            left = max(self._pace.look - pause, 0.0) if pause else 0.0
            self._changed.wait_for(lambda: self._stopping or self._told, left)
            self._told = False
            return not self._stopping

    def _write(self, found: PublishedInventory) -> bool:
        """Write annotation and label; tell whether they are there."""
        metadata = {
            "annotations": {self._annotation: encode_inventory(found)},
            "labels": {self._label: model_label(card.model for card in found.cards)},
        }
        try:
            self._api.patch_node(self._node, {"metadata": metadata})
        except (Rejected, Gone, Unavailable) as error:
            # The node may be registered later, and permissions come after the agent.
            log.warning("inventory waits", extra={"node": self._node, "reason": str(error)})
            self._on_result("retried")
            return False
        self._on_result("written")
        return True
