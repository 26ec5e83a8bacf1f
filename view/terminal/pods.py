"""``kubectl gpu pods``: what GPU pods ask for, what they got, and how that is known. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from common.text import cut
from view.model.reports import ContainerReport, PodReport
from view.model.usage import ContainerUsage
from view.model.words import age
from view.terminal.layout import DIM, Cell, Column, Page, cell, line, table
from view.terminal.words import (
    STAGES,
    amount,
    cards_of,
    evidence_of,
    show_evidence,
)

_LONGEST_WHY = 300

Uses = Mapping[tuple[str, str, str], ContainerUsage]
"""By namespace, pod and container."""

_Row = tuple[PodReport, ContainerReport]


def show_pods(
    pods: Sequence[PodReport],
    now: datetime,
    *,
    namespace: str | None,
    wide: bool = False,
    uses: Uses | None = None,
) -> Page:
    """Lay pods out, one row a container."""
    if not pods:
        where = f" in namespace {namespace}; with -A those of all" if namespace else ""
        return [line(f"No pods that ask for GPUs found{where}.")]
    shown = uses is not None and any(use.measured for use in uses.values())
    rows = [(pod, each) for pod in pods for each in pod.containers]

    def once(of: Callable[[PodReport], object], style: str = "") -> Callable[[_Row], Cell]:
        """Make a field of the pod, which stands in the row of its first container alone."""
        return lambda row: cell(of(row[0]) if row[1] is row[0].containers[0] else "", style)

    grid = table(
        rows,
        *((Column("NAMESPACE"), once(lambda pod: pod.namespace)),) * (namespace is None),
        (Column("NAME"), once(lambda pod: pod.name)),
        (Column("STAGE"), lambda row: once(lambda pod: pod.stage, STAGES[row[0].stage])(row)),
        *(
            (Column("OWNER"), once(lambda pod: pod.owner)),
            (Column("RESTARTS"), once(lambda pod: sum(each.restarts for each in pod.statuses))),
        )
        * wide,
        (Column("CONTAINER", drop=4), lambda row: _name(row[1])),
        (Column("ASKS FOR", drop=1), lambda row: amount(row[1].cores, row[1].blocks)),
        (Column("NODE"), once(lambda pod: pod.node)),
        (Column("CARDS"), lambda row: cards_of(row[1])),
        *((Column("USES"), lambda row: _use_of(row, uses or {})),) * shown,
        (Column("EVIDENCE", drop=3), lambda row: evidence_of(row[1])),
        (Column("AGE", drop=5), once(lambda pod: age(pod.created, now), DIM)),
        *(
            (Column("UUIDS"), lambda row: ",".join(part.uuid for part in row[1].parts)),
            (
                Column("WISHES"),
                lambda row: " ".join(f"{key}={value}" for key, value in row[0].wishes),
            ),
        )
        * wide,
        (Column("WHY", wraps=True), once(lambda pod: cut(pod.why, _LONGEST_WHY))),
    )
    return [grid, *show_evidence(evidence_of(container) for _, container in rows)]


def _name(container: ContainerReport) -> str:
    return container.name + (f" ({container.kind})" if container.kind != "container" else "")


def _use_of(row: _Row, uses: Uses) -> str:
    """Write how much of what it holds a container uses; empty where it is not measured."""
    pod, container = row
    use = uses.get((pod.namespace, pod.name, container.name))
    if use is None or not use.measured:
        return ""
    cores = "?" if use.cores_used is None else f"{use.cores_used:g}"
    memory = "?" if use.memory_used is None else f"{use.memory_used / 2**30:.1f}"
    return f"{cores} cores, {memory} GiB"
