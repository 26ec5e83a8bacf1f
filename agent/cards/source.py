"""Sources of cards: NVML, or a cards file instead."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Protocol

from agent.cards.cards_file import load_inventory
from agent.cards.health import CardFault, FaultKind, Probe
from agent.cards.inventory import Discovery
from agent.cards.nvml import NvmlSource
from agent.errors import SettingsError, Unavailable
from contract.inventory import Inventory

log = logging.getLogger(__name__)

_IN_FILE = {"bus_id": "busId"}
"""Fields of a card with another name in a cards file."""


class CardSession(Protocol):
    """A connection to a source of cards. Every method may raise ``Unavailable``."""

    @property
    def watching(self) -> bool:
        """Whether :meth:`wait` can return an event."""

    @property
    def stale(self) -> bool:
        """Whether the cards should be discovered again, in a new session."""

    def discover(self) -> Discovery:
        """Read every card."""

    def watch(self, uuids: Collection[str], /) -> dict[str, str]:
        """Subscribe to events of these cards; return why that failed, by UUID of the card."""

    def wait(self, seconds: float, /) -> tuple[tuple[str, ...], CardFault] | None:
        """Wait at most so many *seconds* for an event of the driver.

        Returns:
            UUIDs of the cards that the event is about, and the fault; ``None`` without an event.
        """

    def probe(self, uuid: str, /) -> Probe | CardFault:
        """Probe a card."""


class CardSource(Protocol):
    """Opens sessions."""

    def open(self) -> AbstractContextManager[CardSession]:
        """Start a session; may raise ``Unavailable``."""


class FileSource:
    """The cards of a file, which is read again after each change; for one thread.

    They are healthy, except those with ``health`` in the file, and those that are no longer in it.
    """

    watching = False

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            SettingsError: it cannot be used.
        """
        self._path = path
        self._identity = self._identify()
        self.problem = ""
        """Why the edited file is not used; may be read from any thread."""
        self.edited: Mapping[str, str] = {}
        """The edited fields of served cards that count after a restart, by UUID."""
        self.on_problem: Callable[[str], None] = lambda _reason: None
        """Called with the reason when an edited file is not used."""
        self.inventory = self._discovered = self._served = load_inventory(path)

    def open(self) -> AbstractContextManager["FileSource"]:
        """Start a session."""
        return nullcontext(self)

    @property
    def stale(self) -> bool:
        """Whether the file has changed since the last discovery."""
        identity = self._identify()
        if identity != self._identity:
            self._identity = identity
            try:
                self.inventory, self.problem = load_inventory(self._path), ""
            except SettingsError as error:
                self.problem = str(error)
                more = {"reason": self.problem}
                log.warning("cards file not used, the last one applies", extra=more)
                self.on_problem(self.problem)
            else:
                self.edited = _changed_beside_health(self._served, self.inventory)
                if self.edited:
                    log.warning("edited cards count after a restart", extra={"cards": self.edited})
        return self.inventory != self._discovered

    def _identify(self) -> tuple[int, ...]:
        """Return what differs if the file was replaced or changed; empty if there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def discover(self) -> Discovery:
        """Return the cards."""
        self._discovered = self.inventory
        return Discovery(self.inventory)

    def watch(self, _uuids: Collection[str], /) -> dict[str, str]:
        """Subscribe to nothing: a file has no events."""
        return {}

    def wait(self, _seconds: float, /) -> tuple[tuple[str, ...], CardFault] | None:
        """Return ``None`` at once: a file has no events, so there is nothing to wait for."""
        return None

    def probe(self, uuid: str, /) -> Probe | CardFault:
        """Return the health in the file."""
        card = self.inventory.card(uuid)
        if card is None:
            return CardFault(FaultKind.LOST, "no longer in the cards file")
        return CardFault(FaultKind.ERROR, card.unhealthy) if card.unhealthy else Probe()


def _changed_beside_health(served: Inventory, edited: Inventory) -> Mapping[str, str]:
    """Return the edited fields of served cards, by UUID, except for the health."""
    changes = {
        card.uuid: ", ".join(
            _IN_FILE.get(each.name, each.name)
            for each in fields(card)
            if each.name != "unhealthy" and getattr(card, each.name) != getattr(before, each.name)
        )
        for card in edited.cards
        if (before := served.card(card.uuid)) is not None
    }
    return {uuid: names for uuid, names in changes.items() if names}


def open_source(cards: Path | None, *, mig: bool = False, mps: bool = False) -> CardSource:
    """Return the source for a cards file, or NVML for ``None``, with *mig* and *mps* as there.

    Raises:
        SettingsError: the cards file cannot be used.
    """
    return NvmlSource(mig=mig, mps=mps) if cards is None else FileSource(cards)


def discover(cards: Path | None, *, mig: bool = False) -> Discovery:
    """Discover the cards once.

    Raises:
        SettingsError: the cards file cannot be used, or NVML does not work.
    """
    try:
        with open_source(cards, mig=mig).open() as session:
            return session.discover()
    except Unavailable as error:
        raise SettingsError(f"cards: {error} (--cards FILE reads a file instead)") from error


def none_served(found: Discovery) -> str:
    """Return why no card can be served."""
    reasons = "; ".join(f"card {each.index}: {each.reason}" for each in found.left_out())
    return f"no card can be served: {reasons or 'the node has none'}"
