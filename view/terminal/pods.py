"""``kubectl gpu pods``: what GPU pods ask for, what they got, and how that is known. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from view.model.reports import PodReport
from view.model.usage import ContainerUse
from view.model.words import age
from view.terminal.layout import DIM, Column, Grid, Line, Page, Row, cell, line
from view.terminal.words import (
    STAGES,
    amount,
    cards_of,
    cut,
    evidence_of,
    show_evidence,
)

_LONGEST_WHY = 300

Uses = Mapping[tuple[str, str, str], ContainerUse]
"""By namespace, pod and container."""


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
    namespaces = namespace is None
    shown = uses is not None and any(use.measured for use in uses.values())
    columns = (
        *((Column("NAMESPACE"),) if namespaces else ()),
        Column("NAME"),
        Column("STAGE"),
        *((Column("OWNER"), Column("RESTARTS")) if wide else ()),
        Column("CONTAINER", drop=4),
        Column("ASKS FOR", drop=1),
        Column("NODE"),
        Column("CARDS"),
        *((Column("USES"),) if shown else ()),
        Column("EVIDENCE", drop=3),
        Column("AGE", drop=5),
        *((Column("UUIDS"), Column("WISHES")) if wide else ()),
        Column("WHY", wraps=True),
    )
    page: list[Grid | Line] = []
    rows: list[Row] = []
    for pod in pods:
        for at, container in enumerate(pod.containers):
            first = at == 0
            name = container.name + (
                f" ({container.kind})" if container.kind != "container" else ""
            )
            use = (uses or {}).get((pod.namespace, pod.name, container.name))
            rows.append(
                (
                    *((cell(pod.namespace if first else ""),) if namespaces else ()),
                    cell(pod.name if first else ""),
                    cell(pod.stage.value if first else "", STAGES[pod.stage]),
                    *(
                        (cell(pod.owner if first else ""), cell(_restarts(pod, first=first)))
                        if wide
                        else ()
                    ),
                    cell(name),
                    cell(amount(container.cores, container.blocks)),
                    cell(pod.node if first else ""),
                    cell(cards_of(container)),
                    *((cell(use_of(use)),) if shown else ()),
                    cell(evidence_of(container)),
                    cell(age(pod.created, now) if first else "", DIM),
                    *(
                        (
                            cell(",".join(part.uuid for part in container.parts)),
                            cell(" ".join(f"{key}={value}" for key, value in pod.wishes)),
                        )
                        if wide
                        else ()
                    ),
                    cell(cut(pod.why, _LONGEST_WHY) if first else ""),
                )
            )
    page.append(Grid(columns, tuple(rows)))
    words = (evidence_of(container) for pod in pods for container in pod.containers)
    return [*page, *show_evidence(words)]


def _restarts(pod: PodReport, *, first: bool) -> str:
    return str(sum(each.restarts for each in pod.statuses)) if first else ""


def use_of(use: ContainerUse | None) -> str:
    """Write how much of what it holds a container uses; empty where it is not measured."""
    if use is None or not use.measured:
        return ""
    cores = "?" if use.cores_used is None else f"{use.cores_used:g}"
    memory = "?" if use.memory_used is None else f"{use.memory_used / 2**30:.1f}"
    return f"{cores} cores, {memory} GiB"
