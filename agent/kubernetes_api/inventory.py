"""The published inventory: an annotation and a label of the node, which a thread updates."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from agent.kubernetes_api.client import Api
from agent.kubernetes_api.write_queue import WriteQueue
from common.backoff import spread
from contract.inventory import Amounts, Card, Inventory, PublishedInventory, encode_inventory
from contract.resource import Resource
from contract.text import to_label

log = logging.getLogger(__name__)

MIXED = "mixed"
"""The label's value for cards of several models: a selector of one model must not match."""

_LONGEST_LABEL = 63  # its value, as the API server allows
_EDGES = "._-"


@dataclass(frozen=True, slots=True)
class InventoryPace:
    """Intervals, in seconds.

    Attributes:
        write: least time between two writes.
        freed: least time between two writes if more has become free, since pods may wait for that;
            also the least time between two checks.
        check: longest time between two checks, even if no change is reported.
        renew: age at which an unchanged inventory is written again: the node object may have been
            deleted and created again.
        retry: pause before a failed write is tried again, doubled with each failure.
        retry_most: the longest such pause.
    """

    write: float = 10.0
    freed: float = 1.0
    check: float = 10.0
    renew: float = 300.0
    retry: float = 1.0
    retry_most: float = 60.0


def survey(
    inventory: Inventory,
    *,
    block: int,
    unhealthy: Callable[[str], str],
    cordoned: AbstractSet[str],
    free: Mapping[Resource, Mapping[str, int]],
) -> PublishedInventory:
    """Build the inventory to publish.

    *block* is in bytes. *unhealthy* returns the fault of a card, by UUID, empty without one.
    *cordoned* has the UUIDs of the cordoned cards. *free* has the number of free slots,
    by resource and card UUID.
    """
    return PublishedInventory(
        block,
        tuple(
            Card(
                card.uuid,
                card.index,
                card.model,
                card.memory,
                card.numa,
                unhealthy(card.uuid),
                card.uuid in cordoned,
            )
            for card in inventory.cards
        ),
        inventory.links,
        tuple(
            Amounts(free[Resource.CORE][card.uuid], free[Resource.MEMORY][card.uuid])
            for card in inventory.cards
        ),
    )


def model_label(models: Iterable[str]) -> str | None:
    """Return the label's value for cards of these models; ``None`` without models."""
    labels = (to_label(each).strip(_EDGES) for each in models)
    values = {each[:_LONGEST_LABEL].rstrip(_EDGES) for each in labels} - {""}
    if len(values) > 1:
        return MIXED
    return next(iter(values), None)


def _is_more(before: PublishedInventory, after: PublishedInventory) -> bool:
    """Return whether more of any card is available than before."""
    known = {card.uuid: (card, free) for card, free in zip(before.cards, before.free, strict=True)}
    for card, free in zip(after.cards, after.free, strict=True):
        if card.uuid not in known:
            return True
        old, was_free = known[card.uuid]
        if (old.withheld and not card.withheld) or not was_free.covers(free):
            return True
    return False


class InventoryWriter(WriteQueue[str, None]):
    """Writes the inventory soon after a change, and not more often than its pace allows.

    Its queue has one key, the node; the inventory is read at the moment of the write.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        api: Api,
        node: str,
        annotation: str,
        label: str,
        survey: Callable[[], PublishedInventory | None],
        pace: InventoryPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """Prepare; nothing is written before :meth:`run`.

        *survey* returns the inventory as it is now, ``None`` while it is not known.
        """
        self._pace = pace = pace or InventoryPace()
        backoff = pace.retry, pace.retry_most
        super().__init__(backoff=backoff, on_result=on_result, clock=clock)
        self._api = api
        self._node = node
        self._annotation = annotation
        self._label = label
        self._survey = survey
        self._renew = spread(pace.renew)
        self._written: PublishedInventory | None = None
        self._written_at = self._checked_at = -math.inf
        self.poke()

    def poke(self) -> None:
        """Report that something may have changed."""
        self._enqueue(self._node, None)

    def _write(self, key: str, item: None) -> float | None:  # noqa: ARG002 -- there is one node
        pace, now = self._pace, self._clock()
        if now - self._checked_at < pace.freed:
            return pace.freed - (now - self._checked_at)
        self._checked_at, found = now, self._survey()
        written, age = self._written, now - self._written_at
        if found is None or (found == written and age < self._renew):
            return pace.check
        if written is not None and age < pace.write and not _is_more(written, found):
            return pace.write - age
        metadata = {
            "annotations": {self._annotation: encode_inventory(found)},
            "labels": {self._label: model_label(card.model for card in found.cards)},
        }
        self._api.patch_node(key, {"metadata": metadata})
        self._written, self._written_at = found, now
        self._enqueue(key, None, after=pace.check)
        return None

    def _log_failure(self, key: str, error: Exception, *, dropped: bool) -> None:  # noqa: ARG002
        # The node may be registered, or the permission granted, after the agent's start.
        log.warning("inventory write failed, will retry", extra={"node": key, "reason": str(error)})
