"""Faults that the driver reports only once (such as Xids), saved as JSON for the next agent.

An Xid is an event: an agent that starts later does not receive it, and the card may pass every
probe. So such faults are kept until the driver is loaded again, which initializes every card. The
clock of the quiet time counts from the boot, and is the same for all agents of one boot.

Faults that NVML reports at any time are not saved: the first probe of the next agent finds them.
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


def driver_instance(boot_id: Path = _BOOT_ID, sysfs: Path = SYSFS) -> str:
    """Return a name that changes with each boot and each load of the driver; empty if not known.

    The kernel counts inodes in sysfs upwards, so the folder of a module that is loaded again has
    another inode. Without such a folder (WSL) the name depends on the boot only.
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
    """The saved faults of this agent and of earlier ones."""

    def __init__(self, store: StateFile, driver_instance: Callable[[], str]) -> None:
        """Save to *store*; *driver_instance* returns the name of the driver instance, or empty."""
        self._store = store
        self._driver_instance = driver_instance
        self._before: dict[str, CardHealth] = {}

    def load(self) -> Mapping[str, CardHealth]:
        """Return the saved health of cards, by UUID; empty if the driver was loaded since."""
        text = self._store.load()
        if not text:
            return {}
        try:
            instance, found = decode(text)
        except ValueError as error:
            log.warning("unhealthy cards cannot be read", extra={"reason": str(error)})
            return {}
        if instance == self._driver_instance():
            self._before = found
        return self._before

    def save(self, health: Mapping[str, CardHealth]) -> None:
        """Save the cards with such faults, and the saved ones that are not watched now.

        The text is compared with the file, since a kubelet that starts empties its plugin folder.
        """
        unwatched = {uuid: was for uuid, was in self._before.items() if uuid not in health}
        unhealthy = unwatched | {uuid: each for uuid, each in health.items() if each.is_event_only}
        instance = self._driver_instance()
        text = encode(instance, unhealthy) if unhealthy and instance else ""
        if text != self._store.load():
            self._store.save(text)


def encode(instance: str, unhealthy: Mapping[str, CardHealth]) -> str:
    """Write the health of cards as JSON."""
    cards = {
        uuid: asdict(each) | {"since": None if each.since is None else each.since.isoformat()}
        for uuid, each in sorted(unhealthy.items())
    }
    return json.dumps({"driver": instance, "cards": cards}) + "\n"


def decode(text: str) -> tuple[str, dict[str, CardHealth]]:
    """Parse the text of :func:`encode`: the driver instance, and the health of cards by UUID.

    Raises:
        ValueError: it is anything else.
    """
    try:
        raw = json.loads(text)
        cards = {str(uuid): _read(each) for uuid, each in raw["cards"].items()}
        return str(raw["driver"]), cards
    except (ArithmeticError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the format of an agent: {error!r}") from error


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
