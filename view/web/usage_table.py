"""The page of who holds and who wastes: in which order, and the same as CSV. Pure."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from view.model.usage_history import DAY, GroupBy, History, UsageRow
from view.web.figures import utc
from view.web.filters import Parameters

MOST = 200
"""Rows of the table."""

_COLUMNS = (
    *("namespace", "owner", "pod", "held_cards", "used_cards", "waiting_cards"),
    *("held_card_hours", "measured_card_hours", "idle_card_hours", "seen_since", "seen_until"),
    "seen_seconds",
)
_FORMULA = ("=", "+", "-", "@")


class UsageOrder(StrEnum):
    """By which column, the most first."""

    IDLE = "idle"
    HELD = "held"
    SHARE = "share"
    NOW = "now"
    WAITING = "waiting"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class UsageSelection(Parameters):
    """What is added up, of which namespace, in which order, and whether to the end."""

    by: GroupBy = GroupBy.NAMESPACE
    namespace: str = ""
    sort: UsageOrder = UsageOrder.IDLE
    every: bool = False


def in_order(rows: Iterable[UsageRow], sort: UsageOrder) -> list[UsageRow]:
    """Return rows sorted; those of which nothing is known come last."""

    def key(each: UsageRow) -> tuple[object, ...]:
        first = {
            UsageOrder.IDLE: each.idle_hours,
            UsageOrder.HELD: each.held_hours,
            UsageOrder.SHARE: each.idle_share,
            UsageOrder.NOW: each.held,
            UsageOrder.WAITING: each.waiting,
            UsageOrder.NAME: 0.0,
        }[sort]
        rest = (each.idle_hours, each.held_hours, each.held, each.waiting)
        amounts = () if sort is UsageOrder.NAME else (first, *rest)
        known = (-1.0 if amount is None else amount for amount in amounts)
        return (*(-amount for amount in known), each.namespace, each.owner, each.pod)

    return sorted(rows, key=key)


def as_csv(rows: Iterable[UsageRow], history: History) -> str:
    """Write all rows as a table; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    seen = (utc(history.at and history.at - DAY), utc(history.at), round(history.seen))
    for each in rows:
        names = (_plain(text) for text in (each.namespace, each.owner, each.pod))
        now = (each.held, each.used, each.waiting)
        amounts = (*now, each.held_hours, each.measured_hours, each.idle_hours)
        rounded = ("" if amount is None else round(amount, 3) for amount in amounts)
        writer.writerow((*names, *rounded, *seen))
    return out.getvalue()


def _plain(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
