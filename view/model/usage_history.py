"""Cards held, used and left idle, by namespace, owner or pod: now, and in the last day. Pure.

A card's worth is 100 cores. What is not measured is neither used nor idle: it is held, and no more
is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from contract.demand import CORES_PER_CARD
from view.model.reports import ClusterReport, Stage
from view.model.usage import NodeUsage

DAY = 86_400.0
"""Seconds."""

SWITCHED_OFF = (
    "Only what is held and used now is shown: for the last day, --prometheus URL "
    "(or GPU_TURNSTILE_PROMETHEUS) names a Prometheus that scrapes the agents."
)
"""What is said where no Prometheus is named."""


class GroupBy(StrEnum):
    """What is added up."""

    NAMESPACE = "namespace"
    OWNER = "owner"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class PastUsage:
    """What one pod held in the last day, in card hours; ``None`` where that is not known."""

    namespace: Annotated[str, "of the pod."]
    pod: Annotated[str, "its name."]
    held_hours: Annotated[float | None, "by its agents' records."]
    measured_hours: Annotated[float | None, "of these, those for which it is known what was used."]
    idle_hours: Annotated[float | None, "of the measured hours, not used."]


@dataclass(frozen=True, slots=True)
class History:
    """The use of the last day."""

    problem: Annotated[str, "why it is not known; empty where it is."] = ""
    at: Annotated[float, "when the day ended, unix time."] = 0.0
    seen: Annotated[float, "seconds of the day in which agents were scraped."] = 0.0
    pods: Annotated[tuple[PastUsage, ...], "every pod that held something."] = ()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A namespace, an owner or a pod. Amounts are cards' worth, or hours of one."""

    namespace: Annotated[str, "its name; empty for what is held by pods that may not be read."]
    owner: Annotated[
        str, "kind and name of what made it; empty where that is not known, or for a namespace."
    ]
    pod: Annotated[str, "its name; empty where it is no pod."]
    held: Annotated[float, "now."] = 0.0
    used: Annotated[float | None, "now, of what is measured; ``None`` where nothing is."] = None
    waiting: Annotated[float, "asked for now by pods without a node."] = 0.0
    held_hours: Annotated[float | None, "in the last day; ``None`` where that is not known."] = None
    measured_hours: Annotated[
        float | None, "of these, those for which it is known what was used."
    ] = None
    idle_hours: Annotated[float | None, "of the measured hours, not used."] = None

    @property
    def idle_share(self) -> float | None:
        """Which part of the measured hours was not used; ``None`` where nothing was measured."""
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
    """Add up what is held, used and waited for; of one namespace alone, if one is named.

    A pod without a known owner, as every pod that has gone, stands for itself.
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
        if pod.stage is Stage.WAITING:
            cores = sum(each.cores for each in pod.containers)
            add(pod.namespace, pod.name, waiting=cores / CORES_PER_CARD)
    if history is not None and not history.problem:
        for key in rows.keys() - held_before:
            rows[key]["held_hours"] = 0.0
    return [UsageRow(*key, **amounts) for key, amounts in rows.items()]
