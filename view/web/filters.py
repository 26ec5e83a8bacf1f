"""What of the cluster a visitor wants to see, and how. Pure.

Cards are chosen, not nodes: a node is shown with those of its cards that are meant, and what is
counted are these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Self
from urllib.parse import urlencode

from view.model.reports import CardReport, NodeReport

PAGE = 1000
"""Nodes on one page."""

_LONGEST = 253
_MOST_PAGES = 1000
_WRITTEN = {"start": "from"}


class _Word(StrEnum):
    """A value of a parameter, and how the form calls it."""

    label: str

    def __new__(cls, value: str, label: str) -> Self:
        """Make a member of its two texts."""
        word = str.__new__(cls, value)
        word._value_, word.label = value, label
        return word


class CardFilter(_Word):
    """Cards of one kind."""

    ALL = "", "all"
    WRONG = "wrong", "wrong"
    WHOLE = "whole", "whole and free"
    ROOM = "room", "with room"
    IDLE = "idle", "held, not used"


class NodeOrder(_Word):
    """In which order nodes are."""

    NAME = "", "name"
    FREE = "free", "most free"
    HELD = "held", "most held"
    IDLE = "idle", "most idle"


class MapColor(_Word):
    """What the map of cards shows of each."""

    CORES = "", "cores held"
    MEMORY = "memory", "memory held"
    USE = "use", "cores used"


class MapGrouping(_Word):
    """How the map of cards is divided."""

    NONE = "", "node"
    MODEL = "model", "model"
    POOL = "pool", "pool"


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a visitor chose of a page, as the parameters of a request have it."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a request; what makes no sense is not chosen."""
        found: dict[str, Any] = {}
        for each in fields(cls):
            text = query.get(_WRITTEN.get(each.name, each.name), "")[:_LONGEST].strip()
            if isinstance(each.default, bool):
                found[each.name] = text == "1"
            elif isinstance(each.default, int):
                number = int(text) if text.isascii() and text.isdigit() else each.default
                found[each.name] = min(number, PAGE * _MOST_PAGES)
            elif isinstance(each.default, StrEnum):
                known = {member.value: member for member in type(each.default)}
                found[each.name] = known.get(text, each.default)
            else:
                found[each.name] = text
        return cls(**found)

    def query(self, **changes: str | int | bool) -> str:
        """Write the parameters of a request, some of them changed; from the first node on."""
        chosen = {each.name: getattr(self, each.name) for each in fields(self)}
        written = {**chosen, "start": 0, **changes}
        return urlencode(
            {
                _WRITTEN.get(key, key): "1" if value is True else value
                for key, value in written.items()
                if value
            }
        )


@dataclass(frozen=True, slots=True)
class Filter(Parameters):
    """A visitor's choice; an empty one chooses everything."""

    search: Annotated[str, "part of the name of a node or of a pod, of a model or of a UUID."] = ""
    namespace: Annotated[str, "of pods that hold something of a card."] = ""
    model: Annotated[str, "product name of a card."] = ""
    node: Annotated[str, "its whole name."] = ""
    show: Annotated[CardFilter, "cards of one kind."] = CardFilter.ALL
    sort: Annotated[NodeOrder, "in which order nodes are."] = NodeOrder.NAME
    paint: Annotated[MapColor, "what the map of cards shows."] = MapColor.CORES
    group: Annotated[MapGrouping, "how the map of cards is divided."] = MapGrouping.NONE
    every: Annotated[bool, "whether lists that are cut are shown to their end."] = False
    start: Annotated[int, "how many nodes are passed over."] = 0

    def __bool__(self) -> bool:
        """Return whether anything is left out."""
        return any((self.search, self.namespace, self.model, self.node, self.show))

    def cards(self, node: NodeReport) -> tuple[CardReport, ...]:
        """Return the cards of a node that are meant."""
        if self.node not in ("", node.name):
            return ()
        return tuple(card for card in node.cards if self._means(node, card)) if self else node.cards

    def keeps(self, node: NodeReport) -> bool:
        """Return whether a node is shown: one without cards, where no cards of a kind are meant."""
        if node.cards:
            return bool(self.cards(node))
        return (
            self.node in ("", node.name)
            and self.search.lower() in node.name
            and not (self.namespace or self.model)
            and self.show in (CardFilter.ALL, CardFilter.WRONG)
        )

    def finds(self, namespace: str, *names: str) -> bool:
        """Return whether a pod or a workload is shown."""
        found = self.search.lower()
        return self.namespace in ("", namespace) and (
            not found or any(found in f"{namespace}/{each}".lower() for each in names)
        )

    def _means(self, node: NodeReport, card: CardReport) -> bool:
        return (
            self.model in ("", card.model)
            and is_of_kind(self.show, node, card)
            and (not self.namespace or any(h.namespace == self.namespace for h in card.holders))
            and (not self.search or self._found(node, card))
        )

    def _found(self, node: NodeReport, card: CardReport) -> bool:
        found = self.search.lower()
        return any(found in each.lower() for each in (node.name, card.model, card.uuid)) or any(
            found in f"{each.namespace}/{each.pod}" for each in card.holders
        )

    def choices(self, name: str) -> tuple[_Word, ...]:
        """Return what the form offers for one of the fields."""
        kind: type[_Word] = type(getattr(self, name))
        return tuple(kind)


def is_of_kind(kind: CardFilter, node: NodeReport, card: CardReport) -> bool:
    """Return whether a card is one of those."""
    wrong = bool(node.problem or card.unhealthy or card.overbooked)
    match kind:
        case CardFilter.ALL:
            return True
        case CardFilter.WRONG:
            return wrong
        case CardFilter.WHOLE:
            return not wrong and card.cores_free == card.cores
        case CardFilter.ROOM:
            return not wrong and card.cores_free > 0 and card.blocks_free > 0
        case CardFilter.IDLE:
            return card.cores_held > 0 and card.cores_used == 0


def in_order(sort: NodeOrder, node: NodeReport) -> tuple[float | str, ...]:
    """Return by what a node is sorted."""
    match sort:
        case NodeOrder.NAME:
            return (node.name,)
        case NodeOrder.FREE:
            free = 0 if node.problem else node.cores_free
            return (0 if node.problem else -node.whole_cards, -free, node.name)
        case NodeOrder.HELD:
            return (-node.cores_held, node.name)
        case NodeOrder.IDLE:
            measured = (card for card in node.cards if card.cores_used is not None)
            idle = sum(max(card.cores_held - (card.cores_used or 0), 0) for card in measured)
            return (-idle, node.name)
