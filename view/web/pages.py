"""What each page shows: reports cut down to a visitor's choice. Pure; templates write it."""

from collections.abc import Iterable
from dataclasses import dataclass

from view.model.reports import (
    DeniedReport,
    Holder,
    NodeReport,
    NodeVerdict,
    PodReport,
    PodStory,
    Source,
    Stage,
)
from view.model.words import count_of
from view.web.editions import Delta, Edition
from view.web.figures import Total, memory, total
from view.web.filters import PAGE, Filter

MOST_ATTENTION = 100
"""Rows of the table of pods that wait or were refused."""

MOST_VERDICTS = 20
"""Nodes of one reason whose cards a pod's page shows."""

_ATTENTION = {Stage.FAILING: 0, Stage.REFUSED: 1, Stage.WAITING: 2, Stage.FAILED: 3}


@dataclass(frozen=True, slots=True)
class NodesPage:
    """The page of nodes, or what changed of it.

    Attributes:
        edition: of which it is.
        filter: what the visitor chose.
        shown: nodes on this page.
        matching: how many nodes the choice keeps.
        total: sums over these.
        attention: pods that wait or were refused, the refused first.
        denied: workloads whose pods are refused at their creation.
        attention_count: how many of both there are, also those not shown.
        namespaces: to choose from.
        models: to choose from.
    """

    edition: Edition
    filter: Filter
    shown: tuple[NodeReport, ...]
    total: Total
    attention: tuple[PodReport, ...]
    denied: tuple[DeniedReport, ...]
    attention_count: int
    namespaces: tuple[str, ...]
    models: tuple[str, ...]

    @property
    def previous(self) -> int | None:
        """Where the page before begins; ``None`` where this is the first."""
        return max(self.filter.start - PAGE, 0) if self.filter.start else None

    @property
    def following(self) -> int | None:
        """Where the page after begins; ``None`` where this is the last."""
        end = self.filter.start + PAGE
        return end if end < self.total.nodes else None


def nodes_page(edition: Edition, chosen: Filter) -> NodesPage:
    """Return the page of nodes."""
    report = edition.report
    matching = tuple(node for node in report.nodes if chosen.keeps(node))
    attention = sorted(
        (
            pod
            for pod in report.pods
            if pod.stage in _ATTENTION and not pod.replaced and _of(pod.namespace, chosen)
        ),
        key=lambda pod: (_ATTENTION[pod.stage], pod.namespace, pod.name),
    )
    denied = tuple(each for each in report.denied if _of(each.namespace, chosen))
    namespaces = {pod.namespace for pod in report.pods} | {chosen.namespace}
    models = {card.model for node in report.nodes for card in node.cards} | {chosen.model}
    return NodesPage(
        edition,
        chosen,
        matching[chosen.start : chosen.start + PAGE],
        total(matching),
        tuple(attention[:MOST_ATTENTION]),
        denied[:MOST_ATTENTION],
        len(attention) + len(denied),
        tuple(sorted(namespaces - {""})),
        tuple(sorted(models - {""})),
    )


def changes(page: NodesPage, seen: int) -> Delta | None:
    """Return what changed on a page since an edition; ``None`` where it is to be loaded anew."""
    delta = page.edition.delta(seen)
    if delta is None:
        return None
    here = {node.name for node in page.shown}
    return Delta(
        tuple(node for node in delta.changed if node.name in here),
        (*delta.gone, *(node.name for node in delta.changed if node.name not in here)),
    )


def _of(namespace: str, chosen: Filter) -> bool:
    return not chosen.namespace or namespace == chosen.namespace


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Nodes about which the same is to be said of a pod."""

    reason: str
    fits: bool
    nodes: tuple[NodeVerdict, ...]


def grouped(story: PodStory) -> tuple[Verdicts, ...]:
    """Return the nodes that were considered, those where the pod fits first."""
    groups: dict[tuple[bool, str], list[NodeVerdict]] = {}
    for each in story.nodes:
        groups.setdefault((not each.fits, each.reason), []).append(each)
    return tuple(
        Verdicts(reason, not misfits, tuple(nodes))
        for (misfits, reason), nodes in sorted(groups.items(), key=lambda item: item[0][0])
    )


class Blocks:
    """How large memory blocks are."""

    def __init__(self, nodes: Iterable[NodeReport]) -> None:
        """Take the nodes of the cluster."""
        self._sizes = {node.name: node.memory_block for node in nodes if node.memory_block}
        everywhere = set(self._sizes.values())
        self._common = everywhere.pop() if len(everywhere) == 1 else 0

    def size(self, node: str) -> int:
        """Return the bytes of a block on a node, or on all where it is the same; else 0."""
        return self._sizes.get(node, self._common)


def asks(pod: PodReport, size: int = 0) -> str:
    """Write what a pod asks for, in the units in which its author does.

    Args:
        pod: the pod.
        size: bytes of a memory block; 0 where that is unknown.
    """
    cores = sum(each.cores for each in pod.containers)
    blocks = sum(each.blocks for each in pod.containers)
    text = count_of(cores, "core") + (f", {blocks_text(blocks, size)}" if blocks else "")
    return f"{text} in {len(pod.containers)} containers" if len(pod.containers) > 1 else text


def blocks_text(blocks: int, size: int) -> str:
    """Write memory blocks, and how much that is where it is known."""
    text = count_of(blocks, "block")
    return f"{text} ({memory(blocks * size)})" if blocks and size else text


def shade(holder: Holder, namespace: str) -> str:
    """Return further classes of a holder: whose namespace was not chosen, and who is uncertain."""
    other = " other" if namespace and holder.namespace != namespace else ""
    sure = holder.source in {Source.RECORDED, Source.UNSEEN}
    return other + ("" if sure else " unsure") + (" unseen" if not holder.pod else "")
