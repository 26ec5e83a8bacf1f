"""Sources of cards: NVML, or a cards file instead."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from agent.cards.cards_file import load_inventory
from agent.cards.health import CardFault, Probe
from agent.cards.inventory import Discovery
from agent.cards.nvml import NvmlSource
from agent.errors import SettingsError, Unavailable
from contract.inventory import Inventory


class CardSession(Protocol):
    """A connection to a source of cards. Every method may raise ``Unavailable``."""

    @property
    def watching(self) -> bool:
        """Whether :meth:`wait` can return an event."""

    def discover(self) -> Discovery:
        """Read every card."""

    def watch(self, uuids: Collection[str], /) -> dict[str, str]:
        """Subscribe to events; return the reasons of failures, by UUID."""

    def wait(self, seconds: float, /) -> tuple[str, CardFault] | None:
        """Wait for an event; return the card's UUID and the fault, or ``None``."""

    def probe(self, uuid: str, /) -> Probe | CardFault:
        """Probe a card."""


class CardSource(Protocol):
    """Opens sessions."""

    def open(self) -> AbstractContextManager[CardSession]:
        """Start a session; may raise ``Unavailable``."""


class StaticSource:
    """The cards of a file: always available, always healthy."""

    watching = False

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._found = Discovery(inventory)

    def open(self) -> AbstractContextManager["StaticSource"]:
        """Start a session."""
        return nullcontext(self)

    def discover(self) -> Discovery:
        """Return the cards."""
        return self._found

    def watch(self, _uuids: Collection[str], /) -> dict[str, str]:
        """Subscribe to nothing: a file has no events."""
        return {}

    def wait(self, _seconds: float, /) -> tuple[str, CardFault] | None:
        """Return no event."""
        return None

    def probe(self, _uuid: str, /) -> Probe | CardFault:
        """Return a healthy probe."""
        return Probe()


def open_source(cards: Path | None) -> CardSource:
    """Return the source for a cards file, or NVML for ``None``.

    Raises:
        SettingsError: the cards file cannot be used.
    """
    return NvmlSource() if cards is None else StaticSource(load_inventory(cards))


def discover(cards: Path | None) -> Discovery:
    """Discover the cards once.

    Raises:
        SettingsError: the cards file cannot be used, or NVML does not work.
    """
    try:
        with open_source(cards).open() as session:
            return session.discover()
    except Unavailable as error:
        raise SettingsError(f"cards: {error} (--cards FILE reads a file instead)") from error


def none_served(found: Discovery) -> str:
    """Return why no card can be served."""
    reasons = "; ".join(f"card {each.index}: {each.reason}" for each in found.left_out())
    return f"no card can be served: {reasons or 'the node has none'}"
