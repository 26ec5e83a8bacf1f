"""A pod object: the fields that placement uses, and further ones that only users need."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from contract.claims import CLAIM, named_template
from contract.demand import ContainerDemand
from contract.errors import InvalidRecord, InvalidStamp
from contract.names import Names
from contract.quantity import as_written
from contract.spelling import advise_wishes
from contract.stamps import OrderStamp
from contract.text import read_json
from placement.cluster.nominations import Nomination, read_nomination
from placement.cluster.selectors import ANY_NODE, NodeSelection, read_selection
from placement.first_fit import lasting_demand
from placement.pods import PodInfo, read_gpu_pod
from view.model.node_facts import find_condition
from view.model.queues import GATES, QueueKey, find_key
from view.model.reports import ContainerReport, ContainerStatus, PodReport, Stage, Termination
from view.model.words import clamp, rfc3339

# The kubelet wraps the text of our agent (fact K9).
_REFUSAL = re.compile(r"\bdesc = (?P<text>.*?)(?:, which is unexpected\.?)?\Z", re.DOTALL)
_EMPTY: Mapping[str, Any] = {}
_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits although nothing is wrong."""

_NO_TIME = ("", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z")
"""Times of a start that never was: a runtime reports 0 for it, which the kubelet formats."""

WITHOUT_PLUGIN = ("no healthy devices present", "client connection is closing")
"""What the kubelet reports if no device plugin is connected (K19)."""

_NODE_FAULT = re.compile(
    r"\A(?:gpu-turnstile: |container \S+: )*(?P<text>"
    r"(?:(?:state|plugin|driver|hami-library)-dir: |the containers would start without).*)",
    re.DOTALL,
)
"""A refusal because of the node, whatever the pod requests (docs/operate.md#a-pod-was-refused)."""

_REJECTED = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")
"""Prefixes of the reasons with which the kubelet rejects a pod for lack of resources."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod that requests GPUs."""

    info: Annotated[PodInfo, "the pod for placement."]
    report: Annotated[PodReport, "the report, as far as it follows from the pod object alone."]
    owner_uid: Annotated[str, "UID of its controller."]
    unscheduled: Annotated[
        tuple[str, str], "reason and message of the condition ``PodScheduled`` if it is false."
    ]
    nominated: Annotated[str, "node on which other pods are evicted for it; empty if none."]
    warnings: Annotated[
        tuple[str, ...], "what to write instead of annotations and labels that nobody reads."
    ]

    selection: Annotated[NodeSelection, "which nodes its own spec allows."] = ANY_NODE
    priority: Annotated[
        int | None, "its priority; ``None`` if only the name of its class is known."
    ] = 0
    nomination: Annotated[
        Nomination | None, "for which others are evicted by the extender, and what is kept for it."
    ] = None
    ends_at: Annotated[str, "when it is to have ended; empty if nobody has deleted it."] = ""
    queue: Annotated[
        QueueKey | None, "by what its Workload of Kueue is found; ``None`` if it is in no queue."
    ] = None

    @property
    def gated(self) -> bool:
        """Whether it waits for Kueue to admit it."""
        return not set(GATES).isdisjoint(self.selection.gates)

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.info.terminal


def read_pod_facts(obj: Mapping[str, Any], names: Names) -> PodFacts | None:
    """Read a pod object, whose annotations may be hostile; ``None`` if it requests no GPU."""
    info = read_gpu_pod(obj, names)
    if info is None:
        return None
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    owner, owner_uid = _owner(metadata)
    phase, reason = status.get("phase") or "Pending", clamp(status.get("reason"))
    statuses = read_statuses(status)
    report = PodReport(
        namespace=info.id.namespace,
        name=info.id.name,
        uid=info.id.uid,
        owner=owner,
        node=info.node,
        phase=phase,
        reason=reason,
        message=clamp(status.get("message")),
        stage=_stage(info, phase, reason, statuses),
        deleting="deletionTimestamp" in metadata,
        created=metadata.get("creationTimestamp") or "",
        scheduler=spec.get("schedulerName") or "default-scheduler",
        containers=tuple(map(container_report, info.demand.containers)),
        wishes=_wishes(metadata.get("annotations") or _EMPTY, names),
        translated_from=_original(metadata.get("annotations") or _EMPTY, names),
        statuses=statuses,
        why="",
        replaced=False,
        misplaced=_misplaced(info, phase, status),
        events=(),
        claim_template=named_template(obj),
        claim=_claim(status),
    )
    if report.claim_template:
        info = replace(info, demand=lasting_demand(info.demand))
    warnings = tuple(map(clamp, advise_wishes(obj, names)))
    nominated = clamp(status.get("nominatedNodeName"))
    priority, ends_at = spec.get("priority"), metadata.get("deletionTimestamp") or ""
    if type(priority) is not int:
        priority = None if spec.get("priorityClassName") else 0
    waits = not (info.node or info.terminal or ends_at)
    return PodFacts(
        info,
        report,
        owner_uid,
        _unscheduled(status),
        nominated,
        warnings,
        selection=read_selection(spec),
        priority=priority,
        nomination=read_nomination(obj) if waits else None,
        ends_at=str(ends_at),
        queue=find_key(metadata, (info.id.uid, owner_uid), names) if waits else None,
    )


def container_report(container: ContainerDemand) -> ContainerReport:
    """Return the report on a container of which only the request is known."""
    request = container.demand
    return ContainerReport(
        container.name, container.kind.value, request.cores, request.memory, split=request.split
    )


def failing(statuses: Iterable[ContainerStatus]) -> ContainerStatus | None:
    """Return the first container that cannot start, or has failed and is not running again."""
    for each in statuses:
        wrong = each.ending is not None and each.ending.exit_code != 0
        if (each.state == "terminated" and wrong) or (
            each.state == "waiting" and each.reason not in _USUAL
        ):
            return each
    return None


def _stage(info: PodInfo, phase: str, reason: str, statuses: Sequence[ContainerStatus]) -> Stage:
    if info.terminal:
        if phase == "Succeeded":
            return Stage.SUCCEEDED
        refused = phase == "Failed" and reason.startswith(_REJECTED)
        return Stage.REFUSED if refused else Stage.FAILED
    if not info.node:
        return Stage.PENDING
    if failing(statuses) is not None:
        return Stage.FAILING
    return Stage.RUNNING if phase == "Running" else Stage.STARTING


def _misplaced(info: PodInfo, phase: str, status: Mapping[str, Any]) -> bool:
    """Return whether no card fits a pod on the node that a scheduler chose by totals.

    A scheduler that sees cards names those that it chose in the pod's Binding. Without a stamp of
    its Binding the node may be the manifest's choice.
    """
    refused = phase == "Failed" and "no card fits" in clamp(status.get("message"))
    return refused and bool(info.node and info.rank.bound) and not info.chosen


def refusal_text(message: str) -> str:
    """Extract the agent's text from the kubelet's message; else return the message."""
    found = _REFUSAL.search(message)
    return found["text"] if found else message


def node_fault(text: str) -> str:
    """Return what is wrong with the node if the agent's *text* refuses a pod for that; else empty.

    The text is that of a refused pod's status, or of the Event ``GPURefused``.
    """
    found = _NODE_FAULT.match(refusal_text(text))
    return found["text"] if found else ""


def _wishes(annotations: Mapping[str, Any], names: Names) -> tuple[tuple[str, str], ...]:
    if annotations.keys().isdisjoint(names.wishes):
        return ()
    return tuple(
        (key.removeprefix(f"{names.domain}/"), clamp(annotations[key]))
        for key in sorted(names.wishes & annotations.keys())
    )


def _original(annotations: Mapping[str, Any], names: Names) -> str:
    """Return what the author of a translated pod wrote, in one line; empty if that is unknown."""
    key = names.translated_from
    if key not in annotations:
        return ""
    try:
        kept = read_json(annotations[key], key)
    except InvalidRecord:
        return ""
    if not isinstance(kept, Mapping) or "dialect" not in kept:
        return ""
    resources, given = (
        found if isinstance(found := kept.get(field), Mapping) else _EMPTY
        for field in ("resources", "annotations")
    )
    parts = [
        f"{container}: {', '.join(f'{name} {as_written(count)}' for name, count in counts.items())}"
        for container, counts in resources.items()
        if isinstance(counts, Mapping)
    ]
    parts += [f"{name}={value}" for name, value in given.items()]
    parts += [f"schedulerName={kept['schedulerName']}"] if "schedulerName" in kept else []
    return clamp(f"{kept['dialect']}: {'; '.join(parts)}")


def time_of(stamp: str) -> str:
    """Return the time of an order stamp as RFC 3339 text; empty if it is not a valid stamp."""
    try:
        at = OrderStamp.decode(stamp).time_ns
        return rfc3339(datetime.fromtimestamp(at // 10**9, UTC))
    except (InvalidStamp, OverflowError, ValueError):
        return ""


def _unscheduled(status: Mapping[str, Any]) -> tuple[str, str]:
    found = find_condition(status, "PodScheduled")
    if found.get("status") != "False":
        return "", ""
    return clamp(found.get("reason")), clamp(found.get("message"))


def _claim(status: Mapping[str, Any]) -> str:
    """Return the name of the claim that was made of our template; empty while there is none."""
    for each in status.get("resourceClaimStatuses") or ():
        if each.get("name") == CLAIM:
            return clamp(each.get("resourceClaimName"))
    return ""


def _owner(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the controller (a ReplicaSet's Deployment), and the UID."""
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            kind, name = each.get("kind", ""), each.get("name", "")
            revision = (metadata.get("labels") or {}).get("pod-template-hash")
            if kind == "ReplicaSet" and revision and name.endswith(f"-{revision}"):
                kind, name = "Deployment", name.removesuffix(f"-{revision}")
            return f"{kind}/{name}", each.get("uid", "")
    return "", ""


def _time(value: str | None) -> str:
    return "" if value in _NO_TIME else value or ""


def read_statuses(status: Mapping[str, Any]) -> tuple[ContainerStatus, ...]:
    """Read the states of all containers from the status of a pod, init containers first."""
    return tuple(
        _container_status(each)
        for field in ("initContainerStatuses", "containerStatuses")
        for each in status.get(field) or ()
    )


def _container_status(status: Mapping[str, Any]) -> ContainerStatus:
    state, name = status.get("state") or _EMPTY, status.get("name") or ""
    restarts = status.get("restartCount") or 0
    running = state.get("running")
    if running and not status.get("lastState"):  # the usual case, made fast
        return ContainerStatus(
            name, "running", "", "", restarts, _time(running.get("startedAt")), None
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
        _time(now.get("startedAt")),
        Termination(
            clamp(ended.get("reason")),
            ended.get("exitCode") or 0,
            ended.get("signal") or 0,
            clamp(ended.get("message")),
            _time(ended.get("finishedAt")),
        )
        if ended
        else None,
    )
