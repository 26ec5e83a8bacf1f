"""What only people ask of a pod, beside what agent and extender know of it too."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from contract.demand import ContainerDemand
from contract.errors import InvalidStamp
from contract.names import Names
from contract.stamps import OrderStamp
from placement.pods import PodInfo, read_gpu_pod
from view.model.reports import ContainerReport, ContainerStatus, PodReport, Stage, Termination
from view.model.words import clamp

# What the kubelet writes around our text (fact K9).
_REFUSAL = re.compile(r"\bdesc = (?P<text>.*?)(?:, which is unexpected\.?)?\Z", re.DOTALL)
_EMPTY: Mapping[str, Any] = {}
_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
"""For these reasons containers wait of which nothing is wrong."""

_REJECTED = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")
"""Reasons of a status, or how they begin, with which the kubelet refuses for lack of devices."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod that asks for GPUs."""

    placed: Annotated[PodInfo, "the pod as placing sees it."]
    report: Annotated[PodReport, "the same for people, as far as the pod itself tells it."]
    owner_uid: Annotated[str, "of the controller that made it."]
    unscheduled: Annotated[
        tuple[str, str], "reason and message of the condition ``PodScheduled`` while it is false."
    ]

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.placed.terminal


def read_pod_facts(obj: Mapping[str, Any], names: Names) -> PodFacts | None:
    """Read a pod object, annotations possibly hostile; ``None`` for one that asks for no GPU."""
    placed = read_gpu_pod(obj, names)
    if placed is None:
        return None
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    owner, owner_uid = _owner(metadata)
    phase, reason = status.get("phase") or "Pending", clamp(status.get("reason"))
    statuses = tuple(
        _status(each)
        for field in ("initContainerStatuses", "containerStatuses")
        for each in status.get(field) or ()
    )
    report = PodReport(
        namespace=placed.id.namespace,
        name=placed.id.name,
        uid=placed.id.uid,
        owner=owner,
        node=placed.node,
        phase=phase,
        reason=reason,
        message=clamp(status.get("message")),
        stage=_stage(placed, phase, reason, statuses),
        deleting="deletionTimestamp" in metadata,
        created=metadata.get("creationTimestamp") or "",
        scheduler=spec.get("schedulerName") or "default-scheduler",
        containers=tuple(map(container_report, placed.demand.containers)),
        wishes=_wishes(metadata.get("annotations") or _EMPTY, names),
        statuses=statuses,
        why="",
        replaced=False,
        events=(),
    )
    return PodFacts(placed, report, owner_uid, _unscheduled(status))


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


def _stage(placed: PodInfo, phase: str, reason: str, statuses: Sequence[ContainerStatus]) -> Stage:
    if placed.terminal:
        if phase == "Succeeded":
            return Stage.SUCCEEDED
        refused = phase == "Failed" and reason.startswith(_REJECTED)
        return Stage.REFUSED if refused else Stage.FAILED
    if not placed.node:
        return Stage.WAITING
    if failing(statuses) is not None:
        return Stage.FAILING
    return Stage.RUNNING if phase == "Running" else Stage.STARTING


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
        Termination(
            clamp(ended.get("reason")),
            ended.get("exitCode") or 0,
            ended.get("signal") or 0,
            clamp(ended.get("message")),
            ended.get("finishedAt") or "",
        )
        if ended
        else None,
    )
