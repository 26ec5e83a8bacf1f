"""Usage of containers and cards, from the agents' gauges. Pure.

``gpu_turnstile_agent_container_*`` has the labels ``namespace``, ``pod``, ``container`` and
``card``; ``gpu_turnstile_agent_card_*`` has ``card``. Held amounts follow from allocations; used
amounts are measured, and absent if they cannot be measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from view.model.pod_explanation import UNLIMITED, PodExplanation
from view.model.reports import CardReport, ClusterReport, ContainerReport

PREFIX = "gpu_turnstile_agent_"


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """Usage of one container, summed over its cards."""

    namespace: Annotated[str, "of the pod."]
    pod: Annotated[str, "its name."]
    container: Annotated[str, "its name."]
    cards: Annotated[tuple[str, ...], "UUIDs."]
    cores_held: Annotated[float, "hundredths of a card."]
    memory_held: Annotated[float, "bytes."]
    cores_used: Annotated[float | None, "hundredths of a card; ``None`` if not measured."]
    memory_used: Annotated[float | None, "bytes; ``None`` if not measured."]
    limit: Annotated[str, "what limits each of its processes; empty without MPS."] = ""

    @property
    def measured(self) -> bool:
        """Whether its cores or memory are measured."""
        return self.cores_used is not None or self.memory_used is not None


@dataclass(frozen=True, slots=True)
class CardUsage:
    """Usage of one card; amounts as in :class:`ContainerUsage`."""

    uuid: str
    cores_held: float
    cores_free: float
    memory_held: float
    memory_free: float
    cores_used: float | None
    memory_used: float | None


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Usage of one node, as its agent reports it."""

    node: Annotated[str, "its name."]
    problem: Annotated[str, "why its usage is unknown; empty if its agent responded."] = ""
    measured: Annotated[bool, "whether the agent measures usage."] = False
    cards: Annotated[tuple[CardUsage, ...], "by UUID."] = ()
    containers: Annotated[tuple[ContainerUsage, ...], "by namespace, pod and container."] = ()


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_usage(node: str, samples: Iterable[MetricSample]) -> NodeUsage:
    """Build the usage of a node from its agent's gauges.

    An agent without gauges of cards does not serve yet: it is starting, or waits for the previous
    agent to stop. Then the usage is unknown, which is not the same as nothing held.
    """
    cards: dict[str, dict[str, float]] = {}
    containers: dict[tuple[str, str, str], dict[str, dict[str, float]]] = {}
    for sample in samples:
        what, _, field = sample.name.removeprefix(PREFIX).partition("_")
        labels, card = sample.labels, sample.labels.get("card", "")
        if field not in (*_FIELDS, *_LIMITS) or not sample.name.startswith(PREFIX):
            continue
        if what == "card":
            cards.setdefault(card, {})[field] = sample.value
        elif what == "container":
            key = (labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", ""))
            containers.setdefault(key, {}).setdefault(card, {})[field] = sample.value
    found = tuple(
        _container(key, each)
        for key, each in sorted(containers.items())
        if any(one.keys() & {*_FIELDS} for one in each.values())  # others have ended
    )
    on = tuple(
        CardUsage(
            uuid, *(fields.get(each, 0) for each in _FIELDS[:4]), *map(fields.get, _FIELDS[4:])
        )
        for uuid, fields in sorted(cards.items())
    )
    if not on and not found:
        return NodeUsage(node, "its agent does not serve yet")
    measured = any(each.cores_used is not None or each.memory_used is not None for each in on)
    return NodeUsage(node, "", measured or any(each.measured for each in found), on, found)


_FIELDS = (
    *("cores_held", "cores_free", "memory_held_bytes", "memory_free_bytes"),
    *("cores_used", "memory_used_bytes"),
)


_LIMITS = ("core_limit", "memory_limit_bytes", "mps_clients")


def _limit(by_card: Mapping[str, Mapping[str, float]]) -> str:
    """Return what MPS limits each process of a container to; empty without MPS."""
    of = next((each for each in by_card.values() if "core_limit" in each), None)
    if of is None:
        return ""
    text = f"MPS limits each process to {of['core_limit']:g} % of the SMs"
    memory = {
        each["memory_limit_bytes"] for each in by_card.values() if "memory_limit_bytes" in each
    }
    if memory:  # blocks of a divided share can be one more on some cards
        amounts = sorted({min(memory), max(memory)})
        text += f" and {' to '.join(f'{each / 2**30:g}' for each in amounts)} GiB"
    text += f" of each of {len(by_card)} cards" if len(by_card) > 1 else ""
    if (clients := of.get("mps_clients")) is not None:
        text += f"; processes connected to its daemon: {clients:g}"
    return text


def _container(
    key: tuple[str, str, str], by_card: Mapping[str, Mapping[str, float]]
) -> ContainerUsage:
    def total(field: str) -> float | None:
        values = [each[field] for each in by_card.values() if field in each]
        return sum(values) if values else None

    return ContainerUsage(
        *key,
        tuple(sorted(filter(None, by_card))),
        total("cores_held") or 0,
        total("memory_held_bytes") or 0,
        total("cores_used"),
        total("memory_used_bytes"),
        _limit(by_card),
    )


# --- usage in reports: rounded, so that small changes do not update the page -------------------

_CORES, _BYTES = 5, 256 << 20


_Report = TypeVar("_Report", CardReport, ContainerReport)


def with_usage(report: ClusterReport, uses: Mapping[str, NodeUsage]) -> ClusterReport:
    """Return the report with the usage of cards, if it is measured."""
    nodes = tuple(
        replace(node, cards=_cards_with(node.cards, uses[node.name])) if node.name in uses else node
        for node in report.nodes
    )
    return replace(report, nodes=nodes) if uses else report


def explanation_with_usage(
    explanation: PodExplanation, uses: Mapping[str, NodeUsage]
) -> PodExplanation:
    """Return the explanation with the usage of containers and cards, if it is measured."""
    pod, use = explanation.pod, uses.get(explanation.pod.node)
    if use is None:
        return explanation
    explanation = with_limits(explanation, use.containers)
    own = {
        each.container: each
        for each in use.containers
        if (each.namespace, each.pod) == (pod.namespace, pod.name)
    }
    containers = tuple(_with(each, own.get(each.name)) for each in pod.containers)
    cards = _cards_with(explanation.cards, use)
    return replace(explanation, pod=replace(pod, containers=containers), cards=cards)


def with_limits(
    explanation: PodExplanation, containers: Iterable[ContainerUsage]
) -> PodExplanation:
    """Return the explanation with what limits the pod's processes, where its agent reports that."""
    pod = explanation.pod.namespace, explanation.pod.name
    found = [
        f"{each.container}: {each.limit}"
        for each in containers
        if each.limit and (each.namespace, each.pod) == pod
    ]
    if not found:
        return explanation
    others = (each for each in explanation.limits if each != UNLIMITED)
    return replace(explanation, limits=(*others, *found))


def _cards_with(cards: Sequence[CardReport], use: NodeUsage) -> tuple[CardReport, ...]:
    by_uuid = {each.uuid: each for each in use.cards}
    return tuple(_with(card, by_uuid.get(card.uuid)) for card in cards)


def _with(report: _Report, use: CardUsage | ContainerUsage | None) -> _Report:
    if use is None:
        return report
    cores, memory = _round_up(use.cores_used, _CORES), _round_up(use.memory_used, _BYTES)
    return replace(report, cores_used=cores, memory_used=memory)


def _round_up(value: float | None, step: int) -> int | None:
    """Round up, so that little usage is not shown as idle."""
    return None if value is None else -int(-value // step) * step
