"""Cards that are ill by what the driver tells once, kept for the agent's next start, as JSON.

An Xid is an event: an agent that starts later does not hear of it, and the card may answer every
probe as a sound one does. So its health outlives the agent, for as long as the driver's life
lasts (:mod:`agent.cards.driver_life`): a driver that is loaded anew sets every card up. The clock
of the quiet time counts from the boot, and is the same for every agent of one boot.

What NVML says at any time is not kept: the first probe of the next agent asks it.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Protocol

from agent.cards.health import CardHealth, Fault, FaultKind

log = logging.getLogger(__name__)


class Store(Protocol):
    """One text that survives the agent."""

    def load(self) -> str:
        """Return the text; empty where there is none."""
        ...

    def save(self, text: str) -> None:
        """Replace the text as a whole; where it cannot be written there is none."""
        ...


class KeptFaults:
    """The ill cards of an agent and of the agents before, in one text."""

    def __init__(self, store: Store, life: Callable[[], str]) -> None:
        """Keep in *store*; *life* names the driver's life, empty where it is not known."""
        self._store = store
        self._life = life
        self._before: dict[str, CardHealth] = {}

    def load(self) -> Mapping[str, CardHealth]:
        """Return the cards that were ill, by UUID; none where the driver was loaded since."""
        text = self._store.load()
        if not text:
            return {}
        try:
            life, found = decode(text)
        except ValueError as error:
            log.warning("ill cards cannot be read", extra={"reason": str(error)})
            return {}
        if life == self._life():
            self._before = found
        return self._before

    def save(self, health: Mapping[str, CardHealth]) -> None:
        """Keep the cards that are ill, and those from before that are not watched now.

        The text is compared with what is there: a kubelet that starts empties its plugin folder.
        """
        unwatched = {uuid: was for uuid, was in self._before.items() if uuid not in health}
        ill = unwatched | {uuid: each for uuid, each in health.items() if each.told_once}
        life = self._life()
        text = encode(life, ill) if ill and life else ""
        if text != self._store.load():
            self._store.save(text)


def encode(life: str, ill: Mapping[str, CardHealth]) -> str:
    """Write the health of cards as JSON."""
    cards = {
        uuid: asdict(each) | {"since": None if each.since is None else each.since.isoformat()}
        for uuid, each in sorted(ill.items())
    }
    return json.dumps({"driver": life, "cards": cards}) + "\n"


def decode(text: str) -> tuple[str, dict[str, CardHealth]]:
    """Read what :func:`encode` wrote: the driver's life, and the health of cards by UUID.

    Raises:
        ValueError: it is anything else.
    """
    try:
        raw = json.loads(text)
        cards = {str(uuid): _read(each) for uuid, each in raw["cards"].items()}
        return str(raw["driver"]), cards
    except (ArithmeticError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what an agent writes: {error!r}") from error


def _read(raw: Mapping[str, Any]) -> CardHealth:
    fault, xid, count = raw["fault"], raw["fault"]["xid"], raw["uncorrectable"]
    last = float(raw["last"])
    if not math.isfinite(last):
        raise ValueError("a time that is no number")
    return CardHealth(
        fault=Fault(
            FaultKind(fault["kind"]), str(fault["text"]), None if xid is None else int(xid)
        ),
        since=datetime.fromisoformat(raw["since"]),
        last=last,
        needs_reset=raw["needs_reset"] is not False,
        reset_seen=raw["reset_seen"] is True,
        gone=raw["gone"] is True,
        uncorrectable=None if count is None else int(count),
    )
