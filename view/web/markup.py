"""Sets up the templates and caches rendered nodes. Imports Jinja, not Flask."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote as quoted

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from contract.text import format_count
from view.model import words
from view.model.pod_reasons import describe_status
from view.model.reports import CardReport, NodeReport
from view.model.suggested_changes import how_to_make
from view.model.words import evidence_text
from view.web import card_map, figures, pages
from view.web.editions import Edition
from view.web.filters import MapColor, MapGrouping


def prepare(environment: Environment) -> None:
    """Set up the environment of the templates."""
    environment.autoescape = True
    environment.undefined = StrictUndefined
    # Applied to every value: texts of pods must not reorder or hide other text.
    environment.finalize = _visible
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals |= {
        "age": age,
        "amount": figures.amount,
        "request_of": pages.request_of,
        "requests_of": pages.requests_of,
        "blocks_text": pages.blocks_text,
        "cards": figures.cards,
        "format_count": format_count,
        "describe_gaps": words.describe_gaps,
        "how_to_make": how_to_make,
        "kinds": figures.kinds,
        "evidence_text": evidence_text,
        "memory": figures.memory,
        "moment": figures.moment,
        "percent": figures.percent,
        "plain_bar": plain_bar,
        "pod_url": pod_url,
        "shade": pages.shade,
        "tenants": figures.tenants,
        "describe_status": describe_status,
        "units": words.units,
        "utc": figures.utc,
    }


def age(created: str) -> str:
    """Format how long ago a time was."""
    return words.age(created, datetime.now(UTC))


def _visible(value: Any) -> Any:
    return words.safe(value) if type(value) is str else value


class Rows:
    """Nodes as markup, cached while a node does not change: most do not, from page to page."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._kept: dict[tuple[str, str], tuple[NodeReport, Markup]] = {}

    def row(self, node: NodeReport, page: pages.NodesPage) -> Markup:
        """Return the row of a node, with its cards."""

        def render() -> str:
            template = self._environment.get_template("node.html")
            return template.render(node=node, page=page, root="./")

        return self._cached("", node, page, render)

    def mark(
        self, node: NodeReport, cards: Sequence[CardReport], key: str, page: pages.NodesPage
    ) -> Markup:
        """Return a node on the map of cards."""
        paint = page.filter.paint

        def render() -> str:
            drawn = card_map.picture(node, cards, page.selected, paint)
            template = self._environment.get_template("mark.html")
            return template.render(node=node, drawn=drawn, key=key, root="./")

        return self._cached(f"{page.filter.group} {key} {paint}", node, page, render)

    def _cached(
        self, kind: str, node: NodeReport, page: pages.NodesPage, render: Callable[[], str]
    ) -> Markup:
        if page.filter.namespace or any(card.uuid not in page.selected for card in node.cards):
            return Markup(render())  # noqa: S704 -- Jinja has escaped it
        kept = self._kept.get((kind, node.name))
        if kept is None or kept[0] is not node:
            kept = node, Markup(render())  # noqa: S704 -- Jinja has escaped it
            self._kept[kind, node.name] = kept
        return kept[1]

    def forget(self, edition: Edition) -> None:
        """Clear the cache if it has too many nodes that are gone."""
        if len(self._kept) > _KINDS * len(edition.since):
            self._kept.clear()


_KINDS = 1 + len(MapColor) * len(MapGrouping)
"""Cached kinds of markup of a node: its row, and a mark for each color and grouping."""


def plain_bar(share: int) -> Markup:
    """Return a bar with one part."""
    return Markup(
        '<svg class="bar" aria-hidden="true" viewBox="0 0 100 8" preserveAspectRatio="none">'
        '<rect class="held" width="{}" height="8"/></svg>'
    ).format(share)


def pod_url(namespace: str, name: str) -> str:
    """Return the path of a pod's page."""
    return f"pods/{quoted(namespace, safe='')}/{quoted(name, safe='')}"
