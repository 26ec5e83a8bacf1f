"""The three questions with which people come: what is wrong, where is room, who waits. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from view.model.pod_report import PodGroup, group_pods
from view.model.reports import CardReport, ClusterReport, NodeReport, PodReport, Stage
from view.model.words import count_of
from view.web.filters import CardFilter, Filter, is_of_kind

MOST = 3
"""Lines of one answer."""

WRONG_STAGES = (Stage.FAILING, Stage.REFUSED, Stage.FAILED)

Cards = Sequence[tuple[NodeReport, Sequence[CardReport]]]


class SummaryLine(NamedTuple):
    """One line of an answer."""

    text: Annotated[str, "in words."]
    query: Annotated[
        str, "of the page that shows more of it; empty where that is the pod's page."
    ] = ""
    pod: Annotated[PodReport | None, "of which it is; ``None`` where it is of cards."] = None


class SummaryPanel(NamedTuple):
    """The answer to one question."""

    number: int
    lines: tuple[SummaryLine, ...]
    more: int


def _answer(count: int, lines: Sequence[SummaryLine]) -> SummaryPanel:
    return SummaryPanel(count, tuple(lines[:MOST]), max(len(lines) - MOST, 0))


def attention(report: ClusterReport, chosen: Filter) -> list[PodReport]:
    """Return the pods that wait or are not well."""
    return [
        pod
        for pod in report.pods
        if pod.stage in (*WRONG_STAGES, Stage.WAITING)
        and not pod.replaced
        and chosen.finds(pod.namespace, pod.name, pod.owner)
    ]


def grouped(pods: Iterable[PodReport]) -> list[PodGroup]:
    """Return pods by stage, owner and cause: those that are not well first, then the oldest."""
    pods = tuple(pods)
    return [
        group
        for stage in (*WRONG_STAGES, Stage.WAITING)
        for group in group_pods([pod for pod in pods if pod.stage is stage])
    ]


def what_is_wrong(
    report: ClusterReport, shown: Cards, groups: Sequence[PodGroup], chosen: Filter
) -> SummaryPanel:
    """Count nodes, cards, pods and workloads that are not well."""
    query = chosen.query(show=CardFilter.WRONG)
    away = Counter(node.problem for node, _ in shown if node.problem)
    sick = Counter(card.unhealthy for _, cards in shown for card in cards if card.unhealthy)
    over = sum(card.overbooked for _, cards in shown for card in cards)
    denied = [each for each in report.denied if chosen.finds(each.namespace, each.name)]
    wrong = [group for group in groups if group.pods[0].stage is not Stage.WAITING]
    lines = [SummaryLine(f"{count_of(n, 'node')}: {why}", query) for why, n in away.most_common()]
    lines += [
        SummaryLine(f"{count_of(n, 'card')} unhealthy: {why}", query)
        for why, n in sick.most_common()
    ]
    if over:
        lines.append(SummaryLine(f"{count_of(over, 'card')} held by more than there is", query))
    lines += [
        SummaryLine(
            f"{group.name} {group.pods[0].stage.value}: {group.pods[0].why}", pod=group.pods[0]
        )
        for group in wrong
    ]
    lines += [
        SummaryLine(
            f"{each.kind} {each.namespace}/{each.name}: its pods are denied: {each.message}"
        )
        for each in denied
    ]
    pods = sum(len(group.pods) for group in wrong)
    return _answer(away.total() + sick.total() + over + pods + len(denied), lines)


def where_is_room(shown: Cards, chosen: Filter) -> SummaryPanel:
    """Count whole cards that are free, and say of each model what there is."""
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
            f"{model}: {whole[model]} whole, {some[model] - whole[model]} more with room; "
            f"up to {largest[model]} cores on one",
            chosen.query(model=model, show=CardFilter.ROOM),
        )
        for model in sorted(some, key=lambda each: (-whole[each], -some[each], each))
    ]
    return _answer(whole.total(), lines)


def who_waits(groups: Sequence[PodGroup]) -> SummaryPanel:
    """Count the pods that wait; the oldest first."""
    waiting = [group for group in groups if group.pods[0].stage is Stage.WAITING]
    lines = [
        SummaryLine(f"{group.name}: {group.pods[0].why}", pod=group.pods[0]) for group in waiting
    ]
    return _answer(sum(len(group.pods) for group in waiting), lines)
