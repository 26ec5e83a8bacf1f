"""``kubectl gpu pods``: requests, cards, usage and evidence of GPU pods. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from common.text import cut
from view.model.reports import ContainerReport, PodReport
from view.model.usage import ContainerUsage
from view.model.words import age
from view.terminal.layout import DIM, Cell, Column, Page, cell, line, table
from view.terminal.words import STAGE_STYLES, cards_of, evidence_of, request_of, show_evidence

_LONGEST_REASON = 300

Uses = Mapping[tuple[str, str, str], ContainerUsage]
"""Usage by namespace, pod and container."""

_Row = tuple[PodReport, ContainerReport]


def show_pods(
    pods: Sequence[PodReport],
    now: datetime,
    *,
    namespace: str | None,
    wide: bool = False,
    uses: Uses | None = None,
) -> Page:
    """Lay out pods, one row per container."""
    if not pods:
        where = f" in namespace {namespace}; all namespaces: -A" if namespace else ""
        return [line(f"No pods that request GPUs found{where}.")]
    shown = uses is not None and any(use.measured for use in uses.values())
    rows = [(pod, each) for pod in pods for each in pod.containers]

    def once(of: Callable[[PodReport], object], style: str = "") -> Callable[[_Row], Cell]:
        """Show a field of the pod only in the row of its first container."""
        return lambda row: cell(of(row[0]) if row[1] is row[0].containers[0] else "", style)

    grid = table(
        rows,
        *((Column("NAMESPACE"), once(lambda pod: pod.namespace)),) * (namespace is None),
        (Column("NAME"), once(lambda pod: pod.name)),
        (
            Column("STATUS"),
            lambda row: once(lambda pod: pod.stage.value.capitalize(), STAGE_STYLES[row[0].stage])(
                row
            ),
        ),
        *(
            (Column("OWNER"), once(lambda pod: pod.owner)),
            (Column("RESTARTS"), once(lambda pod: sum(each.restarts for each in pod.statuses))),
        )
        * wide,
        (Column("CONTAINER", drop=4), lambda row: _name(row[1])),
        (Column("REQUESTS", drop=1), lambda row: request_of(row[1])),
        (Column("NODE"), once(lambda pod: pod.node + " (missing)" * pod.node_missing)),
        (Column("CARDS"), lambda row: cards_of(row[1])),
        *((Column("USED"), lambda row: _usage_of(row, uses or {})),) * shown,
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
        (Column("REASON", wraps=True), once(lambda pod: cut(pod.why, _LONGEST_REASON))),
    )
    return [grid, *show_evidence(evidence_of(container) for _, container in rows)]


def _name(container: ContainerReport) -> str:
    return container.name + (f" ({container.kind})" if container.kind != "container" else "")


def _usage_of(row: _Row, uses: Uses) -> str:
    """Format what a container uses; empty if it is not measured."""
    pod, container = row
    use = uses.get((pod.namespace, pod.name, container.name))
    if use is None or not use.measured:
        return ""
    cores = "?" if use.cores_used is None else f"{use.cores_used:g}"
    memory = "?" if use.memory_used is None else f"{use.memory_used / 2**30:.1f}"
    return f"{cores} core{'' if cores == '1' else 's'}, {memory} GiB"
