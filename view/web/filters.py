"""The user's choices for the page of nodes: filters, order and colors. Pure.

Filters select cards, not nodes: a node is shown if one of its cards is selected, and sums count
selected cards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Self
from urllib.parse import urlencode

from contract.inventory import is_instance_uuid
from view.model.reports import CardReport, NodeReport

PAGE = 1000
"""Nodes on one page."""

_LONGEST = 253
_MOST_PAGES = 1000
_PARAMETER_NAMES = {"start": "from"}


class _Choice(StrEnum):
    """A value of a parameter, with its label in the form."""

    label: str

    def __new__(cls, value: str, label: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.label = value, label
        return member


class CardFilter(_Choice):
    """Which cards are shown."""

    ALL = "", "all"
    WRONG = "wrong", "with problems"
    WHOLE = "whole", "wholly free"
    ROOM = "room", "with free cores"
    IDLE = "idle", "idle"


class NodeOrder(_Choice):
    """Order of the nodes."""

    NAME = "", "name"
    FREE = "free", "most free"
    HELD = "held", "most held"
    IDLE = "idle", "most idle"


class MapColor(_Choice):
    """What the colors on the map show."""

    CORES = "", "cores held"
    MEMORY = "memory", "memory held"
    USE = "use", "cores used"


class MapGrouping(_Choice):
    """How the map of cards is grouped."""

    NONE = "", "node"
    MODEL = "model", "model"
    POOL = "pool", "pool"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The user's choices on a page, as parameters of the request."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a request; invalid values are ignored."""
        found: dict[str, Any] = {}
        for each in fields(cls):
            text = query.get(_PARAMETER_NAMES.get(each.name, each.name), "")[:_LONGEST].strip()
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
        """Encode the parameters of a request with *changes*, starting at the first node."""
        chosen = {each.name: getattr(self, each.name) for each in fields(self)}
        parameters = {**chosen, "start": 0, **changes}
        return urlencode(
            {
                _PARAMETER_NAMES.get(key, key): "1" if value is True else value
                for key, value in parameters.items()
                if value
            }
        )


@dataclass(frozen=True, slots=True)
class Filter(Parameters):
    """The user's choices for nodes and cards; an empty filter selects everything."""

    search: Annotated[str, "part of the name of a node, pod or model, or of a UUID."] = ""
    namespace: Annotated[str, "namespace of pods that hold something of a card."] = ""
    model: Annotated[str, "product name of a card."] = ""
    node: Annotated[str, "name of a node."] = ""
    show: Annotated[CardFilter, "which cards."] = CardFilter.ALL
    sort: Annotated[NodeOrder, "order of the nodes."] = NodeOrder.NAME
    paint: Annotated[MapColor, "what the colors on the map show."] = MapColor.CORES
    group: Annotated[MapGrouping, "how the map of cards is grouped."] = MapGrouping.NONE
    every: Annotated[bool, "whether each pod has a row, without a limit."] = False
    start: Annotated[int, "how many nodes are skipped."] = 0

    def __bool__(self) -> bool:
        """Return whether anything is filtered out."""
        return any((self.search, self.namespace, self.model, self.node, self.show))

    def cards(self, node: NodeReport) -> tuple[CardReport, ...]:
        """Return the selected cards of a node."""
        if self.node not in ("", node.name):
            return ()
        return (
            tuple(card for card in node.cards if self._selects(node, card)) if self else node.cards
        )

    def keeps(self, node: NodeReport) -> bool:
        """Return whether a node is shown; one without cards only if the filter allows that."""
        if node.cards:
            return bool(self.cards(node))
        return (
            self.node in ("", node.name)
            and self.search.lower() in node.name
            and not (self.namespace or self.model)
            and self.show in (CardFilter.ALL, CardFilter.WRONG)
        )

    def finds(self, namespace: str, *names: str) -> bool:
        """Return whether a pod or workload is shown."""
        found = self.search.lower()
        return self.namespace in ("", namespace) and (
            not found or any(found in f"{namespace}/{each}".lower() for each in names)
        )

    def _selects(self, node: NodeReport, card: CardReport) -> bool:
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

    def choices(self, name: str) -> tuple[_Choice, ...]:
        """Return the choices that the form offers for a field."""
        kind: type[_Choice] = type(getattr(self, name))
        return tuple(kind)


def is_of_kind(kind: CardFilter, node: NodeReport, card: CardReport) -> bool:
    """Return whether a card is of this kind."""
    wrong = bool(node.unusable or card.unhealthy or card.overbooked)
    usable = not (wrong or card.cordoned or node.unconfirmed)
    match kind:
        case CardFilter.ALL:
            return True
        case CardFilter.WRONG:
            return wrong
        case CardFilter.WHOLE:
            return usable and card.cores_free == card.cores and not is_instance_uuid(card.uuid)
        case CardFilter.ROOM:
            return usable and card.cores_free > 0 and card.blocks_free > 0
        case CardFilter.IDLE:
            return card.cores_held > 0 and card.cores_used == 0


def in_order(sort: NodeOrder, node: NodeReport) -> tuple[float | str, ...]:
    """Return the sort key of a node."""
    match sort:
        case NodeOrder.NAME:
            return (node.name,)
        case NodeOrder.FREE:
            free = 0 if node.unusable else node.cores_free
            return (0 if node.unusable else -node.whole_cards, -free, node.name)
        case NodeOrder.HELD:
            return (-node.cores_held, node.name)
        case NodeOrder.IDLE:
            measured = (card for card in node.cards if card.cores_used is not None)
            idle = sum(max(card.cores_held - (card.cores_used or 0), 0) for card in measured)
            return (-idle, node.name)
