"""The page of who holds and who wastes: what of the ledger is shown, and the same as CSV. Pure."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from view.model.ledger import Account, By, Statement
from view.web.figures import utc
from view.web.filters import read, write

MOST = 200
"""Rows of the table."""

_COLUMNS = (
    *("namespace", "owner", "pod", "held_cards", "used_cards", "waiting_cards"),
    *("held_card_hours", "measured_card_hours", "idle_card_hours", "seen_since", "seen_until"),
    "seen_seconds",
)
_FORMULA = ("=", "+", "-", "@")


class Sort(StrEnum):
    """By which column, the most first."""

    IDLE = "idle"
    HELD = "held"
    SHARE = "share"
    NOW = "now"
    WAITING = "waiting"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is added up, of which namespace, in which order, and whether to the end."""

    by: By = By.NAMESPACE
    namespace: str = ""
    sort: Sort = Sort.IDLE
    every: bool = False

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a request; what makes no sense is as if it were not there."""
        return read(cls, query)

    def query(self, **changes: str | bool) -> str:
        """Write the parameters of a request, some of them changed."""
        return write(self, changes)


def in_order(statement: Statement, sort: Sort) -> list[Account]:
    """Return the accounts sorted; those of which nothing is known come last."""

    def key(each: Account) -> tuple[object, ...]:
        amount = {
            Sort.IDLE: each.idle_hours,
            Sort.HELD: each.held_hours,
            Sort.SHARE: -1.0 if each.idle_share is None else each.idle_share,
            Sort.NOW: each.held,
            Sort.WAITING: each.waiting,
            Sort.NAME: 0.0,
        }[sort]
        return (-amount, each.namespace, each.owner, each.pod)

    return sorted(statement.accounts, key=key)


def as_csv(statement: Statement, sort: Sort) -> str:
    """Write all accounts as a table; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    seen = (utc(statement.since), utc(statement.until), round(statement.seen))
    for each in in_order(statement, sort):
        names = (_plain(text) for text in (each.namespace, each.owner, each.pod))
        measured = each.measured_hours
        amounts = (each.held, each.used, each.waiting, each.held_hours, measured)
        idle = each.idle_hours if measured else None
        rounded = ("" if amount is None else round(amount, 3) for amount in (*amounts, idle))
        writer.writerow((*names, *rounded, *seen))
    return out.getvalue()


def _plain(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
