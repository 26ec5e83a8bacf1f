"""Cards that are ill by what the driver tells once, kept for the agent's next start, as JSON.

An Xid is an event: an agent that starts later does not hear of it, and the card may answer every
probe as a sound one does. So its health outlives the agent, for as long as the driver's life
lasts: a driver that is loaded anew sets every card up. The clock
of the quiet time counts from the boot, and is the same for every agent of one boot.

What NVML says at any time is not kept: the first probe of the next agent asks it.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.cards.health import CardFault, CardHealth, FaultKind
from agent.cards.pci import SYSFS
from agent.host.state_file import StateFile

log = logging.getLogger(__name__)


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def driver_life(boot_id: Path = _BOOT_ID, sysfs: Path = SYSFS) -> str:
    """Return what changes with each boot and each load of the driver; empty if not known.

    The kernel numbers what it shows in sysfs upwards, so a module that is loaded again has a
    folder of another inode. Where there is no such folder (WSL) the boot alone counts.
    """
    try:
        boot = boot_id.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    try:
        module = (sysfs / "module/nvidia").stat().st_ino
    except OSError:
        module = 0
    return f"{boot}-{module}" if boot else ""


class FaultStore:
    """The ill cards of an agent and of the agents before, in one text."""

    def __init__(self, store: StateFile, life: Callable[[], str]) -> None:
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
        ill = unwatched | {uuid: each for uuid, each in health.items() if each.is_event_only}
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
        fault=CardFault(
            FaultKind(fault["kind"]), str(fault["text"]), None if xid is None else int(xid)
        ),
        since=datetime.fromisoformat(raw["since"]),
        last=last,
        needs_reset=raw["needs_reset"] is not False,
        reset_seen=raw["reset_seen"] is True,
        gone=raw["gone"] is True,
        uncorrectable=None if count is None else int(count),
    )
