"""Cards held, used and left idle, by namespace, owner or pod: now, and in the last day. Pure.

Amounts are in cards: 100 cores are one card. Cores that are not measured count as held, but neither
as used nor as idle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from contract.demand import CORES_PER_CARD
from view.model.reports import ClusterReport, Stage
from view.model.usage import NodeUsage

DAY = 86_400.0
"""Seconds of a day."""

SWITCHED_OFF = (
    "Only current usage is shown. For the last day, set --prometheus URL (or "
    "GPU_TURNSTILE_PROMETHEUS) to a Prometheus that scrapes the agents."
)
"""Hint if no Prometheus is configured."""


class GroupBy(StrEnum):
    """By what usage is grouped."""

    NAMESPACE = "namespace"
    OWNER = "owner"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class PastUsage:
    """Usage of one pod in the last day, in card hours; ``None`` if unknown."""

    namespace: Annotated[str, "of the pod."]
    pod: Annotated[str, "its name."]
    held_hours: Annotated[float | None, "as agents reported it."]
    measured_hours: Annotated[float | None, "of these, the hours for which usage was measured."]
    idle_hours: Annotated[float | None, "of the measured hours, those not used."]


@dataclass(frozen=True, slots=True)
class History:
    """Usage of the last day."""

    problem: Annotated[str, "why it is unknown; empty if it is known."] = ""
    at: Annotated[float, "end of the day, unix time."] = 0.0
    seen: Annotated[float, "seconds of the day in which agents were scraped."] = 0.0
    pods: Annotated[tuple[PastUsage, ...], "all pods that held something."] = ()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Usage of a namespace, an owner or a pod, in cards or card hours."""

    namespace: Annotated[str, "its name; empty for pods that may not be read."]
    owner: Annotated[str, "kind and name of the controller; empty if unknown, or for a namespace."]
    pod: Annotated[str, "its name; empty if it is not a pod."]
    held: Annotated[float, "now."] = 0.0
    used: Annotated[float | None, "now, if measured; else ``None``."] = None
    pending: Annotated[float, "requested now by pending pods."] = 0.0
    held_hours: Annotated[float | None, "in the last day; ``None`` if unknown."] = None
    measured_hours: Annotated[float | None, "of these, the hours for which usage was measured."] = (
        None
    )
    idle_hours: Annotated[float | None, "of the measured hours, those not used."] = None

    @property
    def idle_share(self) -> float | None:
        """Idle part of the measured hours; ``None`` if nothing was measured."""
        if not self.measured_hours or self.idle_hours is None:
            return None
        return self.idle_hours / self.measured_hours


def usage_rows(
    report: ClusterReport,
    uses: Mapping[str, NodeUsage],
    history: History | None,
    by: GroupBy,
    namespace: str = "",
) -> list[UsageRow]:
    """Sum up held, used and pending cards by group; only of *namespace* if one is given.

    A pod without a known owner, such as every deleted pod, has a row of its own.
    """
    owners = {(each.namespace, each.name): each.owner for each in report.pods}
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}

    def add(space: str, pod: str, **amounts: float | None) -> None:
        if namespace not in ("", space):
            return
        owner = owners.get((space, pod), "") if by is not GroupBy.NAMESPACE else ""
        alone = by is GroupBy.POD or (by is GroupBy.OWNER and not owner)
        row = rows.setdefault((space, owner, pod if alone else ""), {})
        for name, amount in amounts.items():
            if amount is not None:
                row[name] = row.get(name, 0.0) + amount

    for past in history.pods if history is not None else ():
        add(
            past.namespace,
            past.pod,
            held_hours=past.held_hours,
            measured_hours=past.measured_hours,
            idle_hours=past.idle_hours,
        )
    held_before = {*rows}
    for node in report.nodes:
        for holder in (each for card in node.cards for each in card.holders):
            add(holder.namespace, holder.pod, held=holder.cores / CORES_PER_CARD)
    for use in (each for node_use in uses.values() for each in node_use.containers):
        used = None if use.cores_used is None else use.cores_used / CORES_PER_CARD
        add(use.namespace, use.pod, used=used)
    for pod in report.pods:
        if pod.stage is Stage.PENDING:
            cores = sum(each.cores for each in pod.containers)
            add(pod.namespace, pod.name, pending=cores / CORES_PER_CARD)
    if history is not None and not history.problem:
        for key in rows.keys() - held_before:
            rows[key]["held_hours"] = 0.0
    return [UsageRow(*key, **amounts) for key, amounts in rows.items()]
