"""What each page shows: reports filtered by the user's choices. Pure; templates render it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from contract.text import format_count
from placement.cluster.holdings import Provenance
from view.model.node_fits import NodeFit
from view.model.pod_explanation import PodExplanation
from view.model.pod_groups import PodGroup
from view.model.reports import CardReport, ContainerReport, Holder, NodeReport, PodReport
from view.model.words import of_each
from view.web.card_map import divide
from view.web.editions import Edition
from view.web.figures import Total, memory
from view.web.filters import PAGE, CardFilter, Filter, in_order
from view.web.summary import attention, free_panel, grouped, pending_panel, problems_panel

MOST_ATTENTION = 100
"""Rows of the list of pending, failing and refused pods."""

MOST_FITS = 20
"""Nodes with the same reason of which a pod's page shows the cards."""

CardsOfNode = tuple[NodeReport, tuple[CardReport, ...]]


class NodesPage:
    """The page of nodes, or its changes."""

    def __init__(self, edition: Edition, chosen: Filter) -> None:
        report = edition.report
        kept = _kept(report.nodes, chosen)
        # The summary does not change if only cards of one kind are shown.
        summarized = (
            _kept(report.nodes, replace(chosen, show=CardFilter.ALL)) if chosen.show else kept
        )
        pods = attention(report, chosen)
        groups = grouped(pods)
        denied = [each for each in report.denied if chosen.finds(each.namespace, each.name)]
        self.edition, self.filter = edition, chosen
        self.shown = [node for node, _ in kept[chosen.start : chosen.start + PAGE]]
        self.selected = {card.uuid for _, cards in kept for card in cards}
        self.map = divide(kept, chosen.group)
        self.total = Total(kept)
        self.all_cards = sum(len(node.cards) for node in report.nodes)
        self.problems = problems_panel(report, summarized, groups, chosen)
        self.free = free_panel(summarized, chosen)
        self.pending = pending_panel(groups)
        most = None if chosen.every else MOST_ATTENTION
        listed = (
            [PodGroup((pod,)) for each in groups for pod in each.pods] if chosen.every else groups
        )
        self.attention, self.denied = listed[:most], denied[:most]
        self.attention_count = len(pods) + len(denied)
        self.attention_shown = sum(len(each.pods) for each in listed[:most]) + len(denied[:most])
        namespaces = {pod.namespace for pod in report.pods} | {chosen.namespace}
        models = {card.model for node in report.nodes for card in node.cards} | {chosen.model}
        self.namespaces, self.models = sorted(namespaces), sorted(models)
        end = chosen.start + PAGE
        self.previous = max(chosen.start - PAGE, 0) if chosen.start else None
        self.following = end if end < self.total.nodes else None

    def is_missing(self, node: str) -> bool:
        """Return whether no node with GPUs has this name."""
        return all(each.name != node for each in self.edition.report.nodes)


def _kept(nodes: Iterable[NodeReport], chosen: Filter) -> list[CardsOfNode]:
    kept = ((node, chosen.cards(node)) for node in nodes if chosen.keeps(node))
    return sorted(kept, key=lambda each: in_order(chosen.sort, each[0]))


class FitGroup(NamedTuple):
    """Nodes on which a pod fits, or does not fit for the same reason."""

    reason: str
    fits: bool
    nodes: tuple[NodeFit, ...]


def fit_groups(explanation: PodExplanation) -> tuple[FitGroup, ...]:
    """Group the candidate nodes by reason, those on which the pod fits first."""
    groups: dict[tuple[bool, str], list[NodeFit]] = {}
    for each in explanation.nodes:
        groups.setdefault((not each.fits, each.reason), []).append(each)
    return tuple(
        FitGroup(reason, not misfits, tuple(nodes))
        for (misfits, reason), nodes in sorted(groups.items(), key=lambda item: item[0][0])
    )


class Blocks:
    """Sizes of memory blocks."""

    def __init__(self, nodes: Iterable[NodeReport]) -> None:
        self._sizes = {node.name: node.memory_block for node in nodes if node.memory_block}
        sizes = set(self._sizes.values())
        self._common = sizes.pop() if len(sizes) == 1 else 0

    def size(self, node: str) -> int:
        """Return the bytes of a block on a node; else the size common to all nodes; else 0."""
        return self._sizes.get(node, self._common)


def requests_of(pod: PodReport, size: int = 0) -> str:
    """Format the request of a pod; *size* is the bytes of a block, 0 if unknown."""
    if len(pod.containers) == 1:
        return request_of(pod.containers[0], size)
    cores = sum(each.cores for each in pod.containers)
    blocks = sum(each.blocks for each in pod.containers)
    return f"{_amounts(cores, blocks, size)} in {len(pod.containers)} containers"


def request_of(container: ContainerReport, size: int = 0) -> str:
    """Format the request of a container; *size* is the bytes of a block, 0 if unknown."""
    split = container.split
    return _amounts(container.cores // split, container.blocks // split, size) + of_each(split)


def _amounts(cores: int, blocks: int, size: int) -> str:
    return format_count(cores, "core") + (f", {blocks_text(blocks, size)}" if blocks else "")


def blocks_text(blocks: int, size: int) -> str:
    """Format memory blocks, with GiB if the size of a block is known."""
    text = format_count(blocks, "block")
    return f"{text} ({memory(blocks * size)})" if blocks and size else text


def shade(holder: Holder, namespace: str) -> str:
    """Return CSS classes of a holder: other namespace, unconfirmed, hidden pod."""
    other = " other" if namespace and holder.namespace != namespace else ""
    confirmed = holder.source in {Provenance.RECORDED, Provenance.UNSEEN}
    return other + ("" if confirmed else " unsure") + (" unseen" if not holder.pod else "")
