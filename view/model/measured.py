"""What is measured, put into reports. Pure.

Rounded: nobody sees less in a bar, and a page that changes for less is sent for nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from view.model.reports import CardReport, ClusterReport, NodeReport, PodStory
from view.model.usage import CardUse, ContainerUse, NodeUse

_CORES, _BYTES = 5, 256 << 20


def with_use(report: ClusterReport, uses: Mapping[str, NodeUse]) -> ClusterReport:
    """Return the report with what cards use, where that is measured."""
    if not uses:
        return report
    nodes = tuple(
        _node(node, uses[node.name]) if node.name in uses else node for node in report.nodes
    )
    return replace(report, nodes=nodes)


def story_with_use(story: PodStory, uses: Mapping[str, NodeUse]) -> PodStory:
    """Return a pod's story with what its containers and cards use, where that is measured."""
    pod, use = story.pod, uses.get(story.pod.node)
    if use is None:
        return story
    mine = {
        each.container: each
        for each in use.containers
        if (each.namespace, each.pod) == (pod.namespace, pod.name)
    }
    containers = tuple(
        replace(each, cores_used=_cores(mine[each.name]), memory_used=_memory(mine[each.name]))
        if each.name in mine
        else each
        for each in pod.containers
    )
    return replace(story, pod=replace(pod, containers=containers), cards=_cards(story.cards, use))


def _node(node: NodeReport, use: NodeUse) -> NodeReport:
    return replace(node, cards=_cards(node.cards, use))


def _cards(cards: tuple[CardReport, ...], use: NodeUse) -> tuple[CardReport, ...]:
    by_uuid = {each.uuid: each for each in use.cards}
    return tuple(
        replace(
            card, cores_used=_cores(by_uuid[card.uuid]), memory_used=_memory(by_uuid[card.uuid])
        )
        if card.uuid in by_uuid
        else card
        for card in cards
    )


def _cores(use: CardUse | ContainerUse) -> int | None:
    return _to(use.cores_used, _CORES)


def _memory(use: CardUse | ContainerUse) -> int | None:
    return _to(use.memory_used, _BYTES)


def _to(value: float | None, step: int) -> int | None:
    """Round up: what is used a little is not shown as idle."""
    return None if value is None else -int(-value // step) * step
