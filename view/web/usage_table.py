"""The rows of the usage page: their order, and the same as CSV. Pure."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from view.model.usage_history import DAY, GroupBy, History, UsageRow
from view.web.figures import utc
from view.web.filters import Parameters

MOST = 200
"""Rows of the table on the page."""

_COLUMNS = (
    *("namespace", "owner", "pod", "held_cards", "used_cards", "pending_cards"),
    *("held_card_hours", "measured_card_hours", "idle_card_hours", "seen_since", "seen_until"),
    "seen_seconds",
)
_FORMULA = ("=", "+", "-", "@")


class UsageOrder(StrEnum):
    """The column by which rows are sorted, the largest amount first."""

    IDLE = "idle"
    HELD = "held"
    SHARE = "share"
    NOW = "now"
    PENDING = "pending"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class UsageSelection(Parameters):
    """The user's choices for the usage page."""

    by: GroupBy = GroupBy.NAMESPACE
    namespace: str = ""
    sort: UsageOrder = UsageOrder.IDLE
    every: bool = False


def in_order(rows: Iterable[UsageRow], sort: UsageOrder) -> list[UsageRow]:
    """Sort rows; those with unknown amounts come last."""

    def key(each: UsageRow) -> tuple[object, ...]:
        first = {
            UsageOrder.IDLE: each.idle_hours,
            UsageOrder.HELD: each.held_hours,
            UsageOrder.SHARE: each.idle_share,
            UsageOrder.NOW: each.held,
            UsageOrder.PENDING: each.pending,
            UsageOrder.NAME: 0.0,
        }[sort]
        rest = (each.idle_hours, each.held_hours, each.held, each.pending)
        amounts = () if sort is UsageOrder.NAME else (first, *rest)
        known = (-1.0 if amount is None else amount for amount in amounts)
        return (*(-amount for amount in known), each.namespace, each.owner, each.pod)

    return sorted(rows, key=key)


def as_csv(rows: Iterable[UsageRow], history: History) -> str:
    """Format all rows as CSV; unknown amounts are empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    seen = (utc(history.at and history.at - DAY), utc(history.at), round(history.seen))
    for each in rows:
        names = (_plain(text) for text in (each.namespace, each.owner, each.pod))
        now = (each.held, each.used, each.pending)
        amounts = (*now, each.held_hours, each.measured_hours, each.idle_hours)
        rounded = ("" if amount is None else round(amount, 3) for amount in amounts)
        writer.writerow((*names, *rounded, *seen))
    return out.getvalue()


def _plain(text: str) -> str:
    """Escape text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
