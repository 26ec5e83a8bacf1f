"""A pod object as the view needs it: the scheduler's view of it, and what only people ask."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from contract.demand import ContainerDemand, PodDemand
from contract.errors import FieldError, InvalidStamp
from contract.names import Names
from contract.pod_annotations import read_allocations
from contract.requests import read_pod_demand
from contract.stamps import OrderStamp
from contract.wishes import read_wishes
from placement.cluster.pods import Pod, has_ended, parse_pod
from view.model.constraints import Constraints, read_constraints
from view.model.reports import ContainerReport, ContainerStatus, Ending, PodReport, Stage
from view.model.words import clamp

# What the kubelet writes around our text (fact K9).
_REFUSAL = re.compile(r"\bdesc = (?P<text>.*?)(?:, which is unexpected\.?)?\Z", re.DOTALL)
_PLAIN = frozenset({str, type(None)})
_EMPTY: Mapping[str, Any] = {}
_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
"""For these reasons containers wait of which nothing is wrong."""

_REJECTED = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")
"""Reasons of a status, or how they begin, with which the kubelet refuses for lack of devices."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod that asks for GPUs.

    Attributes:
        placed: the pod as placing sees it.
        report: the same for people, as far as the pod itself tells it.
        owner_uid: of the controller that made it.
        evidence: container and evidence, by the agent's record.
        stamps: ``admission-order`` and ``bind-order`` of the webhook; empty where there is none.
        core_limit: hundredths that a share may use in all; ``None`` where nothing is said.
        errors: what is wrong with the request itself.
        unscheduled: reason and message of the condition ``PodScheduled`` while it is false.
        constraints: by what it chooses nodes besides GPUs.
    """

    placed: Pod
    report: PodReport
    owner_uid: str
    evidence: tuple[tuple[str, str], ...]
    stamps: tuple[str, str]
    core_limit: int | None
    errors: tuple[str, ...]
    unscheduled: tuple[str, str]
    constraints: Constraints

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.report.stage in (Stage.SUCCEEDED, Stage.REFUSED, Stage.FAILED)


def read_pod(obj: Mapping[str, Any], names: Names) -> PodFacts | None:
    """Read a pod object, annotations possibly hostile; ``None`` for one that asks for no GPU."""
    spec = obj.get("spec") or {}
    demand, errors = _demand(spec, names)
    if not demand:
        return None
    metadata, status = obj["metadata"], obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    written = read_allocations(annotations, names, [])
    placed = parse_pod(obj, names, demand, written)
    if placed is None:
        return None
    wishes, wrong = read_wishes(annotations, names)
    recorded = dict(placed.recorded)
    owner, owner_uid = _owner(metadata)
    phase, reason = status.get("phase") or "Pending", clamp(status.get("reason"))
    statuses = tuple(
        _status(each)
        for field in ("initContainerStatuses", "containerStatuses")
        for each in status.get(field) or ()
    )
    report = PodReport(
        namespace=placed.namespace,
        name=placed.name,
        uid=placed.uid,
        owner=owner,
        node=placed.node,
        phase=phase,
        reason=reason,
        message=clamp(status.get("message")),
        stage=_stage(placed, phase, reason, statuses, ended=has_ended(obj)),
        deleting="deletionTimestamp" in metadata,
        created=metadata.get("creationTimestamp") or "",
        scheduler=spec.get("schedulerName") or "default-scheduler",
        containers=tuple(map(container_report, demand.containers)),
        wishes=_wishes(annotations, names),
        statuses=statuses,
        why="",
        replaced=False,
        events=(),
    )
    return PodFacts(
        placed,
        report,
        owner_uid,
        tuple((name, each.evidence.value) for name, each in written.items() if name in recorded),
        (
            str(annotations.get(names.admission_order, "")),
            str(annotations.get(names.bind_order, "")),
        ),
        wishes.core_limit,
        tuple(str(each) for each in (*errors, *wrong)),
        _unscheduled(status),
        read_constraints(spec),
    )


def container_report(container: ContainerDemand) -> ContainerReport:
    """Return the report on a container of which only the request is known."""
    asked = container.demand
    return ContainerReport(container.name, container.kind.value, asked.cores, asked.memory)


def failing(statuses: Iterable[ContainerStatus]) -> ContainerStatus | None:
    """Return the first container that cannot start, or ended wrongly and is not running again."""
    for each in statuses:
        wrong = each.ending is not None and each.ending.exit_code != 0
        if (each.state == "terminated" and wrong) or (
            each.state == "waiting" and each.reason not in _USUAL
        ):
            return each
    return None


def _stage(
    placed: Pod, phase: str, reason: str, statuses: Sequence[ContainerStatus], *, ended: bool
) -> Stage:
    if ended:
        if phase == "Succeeded":
            return Stage.SUCCEEDED
        refused = phase == "Failed" and reason.startswith(_REJECTED)
        return Stage.REFUSED if refused else Stage.FAILED
    if not placed.node:
        return Stage.WAITING
    if failing(statuses) is not None:
        return Stage.FAILING
    return Stage.RUNNING if phase == "Running" else Stage.STARTING


def _demand(spec: Mapping[str, Any], names: Names) -> tuple[PodDemand, tuple[FieldError, ...]]:
    """Read what a pod asks for; most have one container, and ask for what others ask for."""
    listed = spec.get("containers")
    if not isinstance(listed, list) or len(listed) != 1 or spec.get("initContainers"):
        return read_pod_demand(spec, names)
    container = listed[0]
    resources = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return read_pod_demand(spec, names)
    limits, requests = resources.get("limits") or _EMPTY, resources.get("requests") or _EMPTY
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return read_pod_demand(spec, names)
    core, memory, name = names.core, names.memory, container.get("name")
    counts = limits.get(core), limits.get(memory), requests.get(core), requests.get(memory)
    if type(name) is str and _PLAIN.issuperset(map(type, counts)):
        return _demand_of(name, counts, names)
    return read_pod_demand(spec, names)


@lru_cache(maxsize=4096)
def _demand_of(
    name: str, counts: tuple[str | None, ...], names: Names
) -> tuple[PodDemand, tuple[FieldError, ...]]:
    keys = (names.core, names.memory)
    limits, requests = (
        {key: count for key, count in zip(keys, pair, strict=True) if count is not None}
        for pair in (counts[:2], counts[2:])
    )
    container = {"name": name, "resources": {"limits": limits, "requests": requests}}
    return read_pod_demand({"containers": [container]}, names)


def refusal_text(message: str) -> str:
    """Return the agent's own text out of the kubelet's message; all of it where it has none."""
    found = _REFUSAL.search(message)
    return found["text"] if found else message


def _wishes(annotations: Mapping[str, Any], names: Names) -> tuple[tuple[str, str], ...]:
    if annotations.keys().isdisjoint(names.wishes):
        return ()
    return tuple(
        (key.removeprefix(f"{names.domain}/"), clamp(annotations[key]))
        for key in sorted(names.wishes & annotations.keys())
    )


def time_of(stamp: str) -> str:
    """Return when an order stamp was made, RFC 3339; empty for what is none."""
    try:
        at = OrderStamp.decode(stamp).time_ns
        return datetime.fromtimestamp(at // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (InvalidStamp, OverflowError, ValueError):
        return ""


def _unscheduled(status: Mapping[str, Any]) -> tuple[str, str]:
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return clamp(each.get("reason")), clamp(each.get("message"))
    return "", ""


def _owner(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of a pod's controller, and its UID; of a ReplicaSet its Deployment's."""
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            kind, name = each.get("kind", ""), each.get("name", "")
            turn = (metadata.get("labels") or {}).get("pod-template-hash")
            if kind == "ReplicaSet" and turn and name.endswith(f"-{turn}"):
                kind, name = "Deployment", name.removesuffix(f"-{turn}")
            return f"{kind}/{name}", each.get("uid", "")
    return "", ""


def _status(status: Mapping[str, Any]) -> ContainerStatus:
    state, name = status.get("state") or _EMPTY, status.get("name") or ""
    restarts = status.get("restartCount") or 0
    running = state.get("running")
    if running and not status.get("lastState"):  # nearly all
        return ContainerStatus(
            name, "running", "", "", restarts, running.get("startedAt") or "", None
        )
    kind = next((each for each in ("waiting", "running", "terminated") if state.get(each)), "")
    now = state.get(kind) or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    return ContainerStatus(
        name,
        kind,
        clamp(now.get("reason")) if kind == "waiting" else "",
        clamp(now.get("message")) if kind == "waiting" else "",
        restarts,
        now.get("startedAt") or "",
        Ending(
            clamp(ended.get("reason")),
            ended.get("exitCode") or 0,
            ended.get("signal") or 0,
            clamp(ended.get("message")),
            ended.get("finishedAt") or "",
        )
        if ended
        else None,
    )
