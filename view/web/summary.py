"""The summary of the page: problems, free cards, pending pods. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from contract.text import format_count
from view.model.pod_groups import PodGroup, group_pods
from view.model.reports import CardReport, ClusterReport, NodeReport, PodReport, Stage
from view.web.filters import CardFilter, Filter, is_of_kind

MOST = 3
"""Lines of one panel."""

WRONG_STAGES = (Stage.FAILING, Stage.REFUSED, Stage.FAILED)

Cards = Sequence[tuple[NodeReport, Sequence[CardReport]]]


class SummaryLine(NamedTuple):
    """One line of a panel."""

    text: Annotated[str, "the text."]
    query: Annotated[
        str, "parameters of the page with details; empty if that is the pod's page."
    ] = ""
    pod: Annotated[PodReport | None, "the pod that it is about; ``None`` if it is about cards."] = (
        None
    )


class SummaryPanel(NamedTuple):
    """One panel: a number, its first lines, and how many more there are."""

    number: int
    lines: tuple[SummaryLine, ...]
    more: int


def _panel(count: int, lines: Sequence[SummaryLine]) -> SummaryPanel:
    return SummaryPanel(count, tuple(lines[:MOST]), max(len(lines) - MOST, 0))


def attention(report: ClusterReport, chosen: Filter) -> list[PodReport]:
    """Return the pending, failing, refused and failed pods."""
    return [
        pod
        for pod in report.pods
        if pod.stage in (*WRONG_STAGES, Stage.PENDING)
        and not pod.replaced
        and chosen.finds(pod.namespace, pod.name, pod.owner)
    ]


def grouped(pods: Iterable[PodReport]) -> list[PodGroup]:
    """Group pods by stage, owner and reason; pending pods come last."""
    pods = tuple(pods)
    return [
        group
        for stage in (*WRONG_STAGES, Stage.PENDING)
        for group in group_pods([pod for pod in pods if pod.stage is stage])
    ]


def problems_panel(
    report: ClusterReport, shown: Cards, groups: Sequence[PodGroup], chosen: Filter
) -> SummaryPanel:
    """Count nodes, cards, pods and workloads with problems."""
    query = chosen.query(show=CardFilter.WRONG)
    unavailable = Counter(node.unusable for node, _ in shown if node.unusable)
    unhealthy = Counter(card.unhealthy for _, cards in shown for card in cards if card.unhealthy)
    overcommitted = sum(card.overbooked for _, cards in shown for card in cards)
    denied = [each for each in report.denied if chosen.finds(each.namespace, each.name)]
    wrong = [group for group in groups if group.pods[0].stage is not Stage.PENDING]
    lines = [
        SummaryLine(f"{format_count(n, 'node')}: {why}", query)
        for why, n in unavailable.most_common()
    ]
    lines += [
        SummaryLine(f"{format_count(n, 'card')} unhealthy: {why}", query)
        for why, n in unhealthy.most_common()
    ]
    if overcommitted:
        lines.append(SummaryLine(f"{format_count(overcommitted, 'card')} overcommitted", query))
    lines += [SummaryLine(group.headline, pod=group.pods[0]) for group in wrong]
    lines += [
        SummaryLine(
            f"{each.kind} {each.namespace}/{each.name}: {each.lacks} cannot be created: "
            f"{each.message}"
        )
        for each in denied
    ]
    pods = sum(len(group.pods) for group in wrong)
    return _panel(
        unavailable.total() + unhealthy.total() + overcommitted + pods + len(denied), lines
    )


def free_panel(shown: Cards, chosen: Filter) -> SummaryPanel:
    """Count wholly free cards, with one line for each model."""
    whole: Counter[str] = Counter()
    some: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for node, cards in shown:
        for card in cards:
            if is_of_kind(CardFilter.ROOM, node, card):
                some[card.model] += 1
                whole[card.model] += is_of_kind(CardFilter.WHOLE, node, card)
                largest[card.model] = max(largest.get(card.model, 0), card.cores_free)
    lines = [
        SummaryLine(
            f"{model}: {whole[model]} whole, {some[model] - whole[model]} more with free cores; "
            f"up to {format_count(largest[model], 'core')} on one card",
            chosen.query(model=model, show=CardFilter.ROOM),
        )
        for model in sorted(some, key=lambda each: (-whole[each], -some[each], each))
    ]
    return _panel(whole.total(), lines)


def pending_panel(groups: Sequence[PodGroup]) -> SummaryPanel:
    """Count the pending pods; the oldest first."""
    pending = [group for group in groups if group.pods[0].stage is Stage.PENDING]
    lines = [
        SummaryLine(f"{group.name}: {group.pods[0].why}", pod=group.pods[0]) for group in pending
    ]
    return _panel(sum(len(group.pods) for group in pending), lines)
