"""What of the cluster a visitor wants to see. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from view.model.reports import NodeReport

PAGE = 1000
"""Nodes on one page."""

_LONGEST = 253
_MOST_PAGES = 1000


@dataclass(frozen=True, slots=True)
class Filter:
    """A visitor's choice; an empty one chooses everything.

    Attributes:
        namespace: of pods; nodes on which none of it holds anything are left out.
        model: product name of cards; nodes without such a card are left out.
        node: part of a node's name.
        start: how many nodes are passed over.
    """

    namespace: str = ""
    model: str = ""
    node: str = ""
    start: int = 0

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a request; what makes no sense chooses everything."""
        start = query.get("from", "")
        return cls(
            query.get("namespace", "")[:_LONGEST],
            query.get("model", "")[:_LONGEST],
            query.get("node", "").strip()[:_LONGEST],
            min(int(start), PAGE * _MOST_PAGES) if start.isascii() and start.isdigit() else 0,
        )

    def __bool__(self) -> bool:
        """Return whether anything is left out."""
        return bool(self.namespace or self.model or self.node)

    def keeps(self, node: NodeReport) -> bool:
        """Return whether a node is shown."""
        return (
            self.node in node.name
            and (not self.model or any(card.model == self.model for card in node.cards))
            and (
                not self.namespace
                or any(
                    holder.namespace == self.namespace
                    for card in node.cards
                    for holder in card.holders
                )
            )
        )

    def query(self, start: int = 0) -> str:
        """Write the parameters of a request for the nodes from *start* on."""
        chosen = {"namespace": self.namespace, "model": self.model, "node": self.node}
        written = {key: value for key, value in chosen.items() if value}
        return urlencode(written | ({"from": str(start)} if start else {}))
