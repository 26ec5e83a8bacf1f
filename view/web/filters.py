"""What of the cluster a visitor wants to see, and how. Pure.

Cards are chosen, not nodes: a node is shown with those of its cards that are meant, and what is
counted are these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode

from view.model.reports import CardReport, NodeReport

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAGE = 1000
"""Nodes on one page."""

_LONGEST = 253
_MOST_PAGES = 1000


class Show(StrEnum):
    """Cards of one kind."""

    ALL = ""
    WRONG = "wrong"
    WHOLE = "whole"
    ROOM = "room"
    IDLE = "idle"


class Sort(StrEnum):
    """In which order nodes are."""

    NAME = ""
    FREE = "free"
    HELD = "held"
    IDLE = "idle"


class Paint(StrEnum):
    """What the map of cards shows of each."""

    CORES = ""
    MEMORY = "memory"
    USE = "use"


class Group(StrEnum):
    """How the map of cards is divided."""

    NONE = ""
    MODEL = "model"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Filter:
    """A visitor's choice; an empty one chooses everything.

    Attributes:
        search: part of the name of a node or of a pod, of a model or of a UUID.
        namespace: of pods that hold something of a card.
        model: product name of a card.
        node: its whole name.
        show: cards of one kind.
        sort: in which order nodes are.
        paint: what the map of cards shows.
        group: how the map of cards is divided.
        every: whether lists that are cut are shown to their end.
        start: how many nodes are passed over.
    """

    search: str = ""
    namespace: str = ""
    model: str = ""
    node: str = ""
    show: Show = Show.ALL
    sort: Sort = Sort.NAME
    paint: Paint = Paint.CORES
    group: Group = Group.NONE
    every: bool = False
    start: int = 0

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a request; what makes no sense chooses everything."""
        found = read(cls, query)
        return replace(found, search=found.search.strip(), node=found.node.strip())

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
            and self.show in (Show.ALL, Show.WRONG)
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

    def query(self, **changes: str | int | bool) -> str:
        """Write the parameters of a request, some of them changed; from the first node on."""
        return write(self, {"start": 0, **changes})


_Chosen = TypeVar("_Chosen", bound="DataclassInstance")
_WRITTEN = {"start": "from"}


def read(kind: type[_Chosen], query: Mapping[str, str]) -> _Chosen:
    """Read a choice from the parameters of a request; what makes no sense is not chosen."""
    found: dict[str, Any] = {}
    for each in fields(kind):
        text, default = query.get(_WRITTEN.get(each.name, each.name), "")[:_LONGEST], each.default
        if isinstance(default, bool):
            found[each.name] = text == "1"
        elif isinstance(default, int):
            number = text.isascii() and text.isdigit()
            found[each.name] = min(int(text), PAGE * _MOST_PAGES) if number else default
        elif isinstance(default, StrEnum):
            known = {member.value: member for member in type(default)}
            found[each.name] = known.get(text, default)
        else:
            found[each.name] = text
    return kind(**found)


def write(chosen: "DataclassInstance", changes: Mapping[str, str | int | bool]) -> str:
    """Write a choice as the parameters of a request, some of them changed."""
    all_of_it = {each.name: getattr(chosen, each.name) for each in fields(chosen)} | {**changes}
    return urlencode(
        {
            _WRITTEN.get(key, key): "1" if value is True else value
            for key, value in all_of_it.items()
            if value
        }
    )


def is_of_kind(kind: Show, node: NodeReport, card: CardReport) -> bool:
    """Return whether a card is one of those."""
    wrong = bool(node.problem or card.unhealthy or card.overbooked)
    match kind:
        case Show.ALL:
            return True
        case Show.WRONG:
            return wrong
        case Show.WHOLE:
            return not wrong and card.cores_free == card.cores
        case Show.ROOM:
            return not wrong and card.cores_free > 0 and card.blocks_free > 0
        case Show.IDLE:
            return card.cores_held > 0 and card.cores_used == 0


def in_order(sort: Sort, node: NodeReport) -> tuple[float | str, ...]:
    """Return by what a node is sorted."""
    match sort:
        case Sort.NAME:
            return (node.name,)
        case Sort.FREE:
            free = 0 if node.problem else node.cores_free
            return (0 if node.problem else -node.whole_cards, -free, node.name)
        case Sort.HELD:
            return (-node.cores_held, node.name)
        case Sort.IDLE:
            measured = (card for card in node.cards if card.cores_used is not None)
            idle = sum(max(card.cores_held - (card.cores_used or 0), 0) for card in measured)
            return (-idle, node.name)


CHOICES: Mapping[str, Sequence[tuple[str, str]]] = {
    "show": (
        ("", "all"),
        (Show.WRONG, "wrong"),
        (Show.WHOLE, "whole and free"),
        (Show.ROOM, "with room"),
        (Show.IDLE, "held, not used"),
    ),
    "sort": (
        ("", "name"),
        (Sort.FREE, "most free"),
        (Sort.HELD, "most held"),
        (Sort.IDLE, "most idle"),
    ),
    "paint": (("", "cores held"), (Paint.MEMORY, "memory held"), (Paint.USE, "cores used")),
    "group": (("", "node"), (Group.MODEL, "model"), (Group.POOL, "pool")),
}
"""What the form offers: value and text."""
