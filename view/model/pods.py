"""A pod object as the view needs it: the scheduler's view of it, and what only people ask."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from contract.demand import PodDemand, read_pod_demand
from contract.errors import FieldError, InvalidStamp
from contract.names import Names
from contract.pod_annotations import read_allocations
from contract.stamps import OrderStamp
from contract.wishes import read_wishes
from placement.cluster.pods import Pod, has_ended, parse_pod
from view.model.constraints import Constraints, read_constraints

# What the kubelet writes around our text (fact K9).
_REFUSAL = re.compile(r"\bdesc = (?P<text>.*?)(?:, which is unexpected\.?)?\Z", re.DOTALL)
_PLAIN = frozenset({str, type(None)})
_EMPTY: Mapping[str, Any] = {}
_REJECTED = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")
"""Reasons of a status, or how they begin, with which the kubelet refuses for lack of devices."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """What the webhook wrote.

    Attributes:
        admission: ``admission-order``; empty where there is no such stamp.
        binding: ``bind-order``; empty where there is no such stamp.
    """

    admission: str
    binding: str


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """A container's state by the kubelet.

    Attributes:
        name: its name.
        waiting: why it does not run, in one word; empty where it does or has.
        message: the same in a sentence.
        started: when it was started; empty where it was not.
        finished: when it ended; empty where it did not.
    """

    name: str
    waiting: str
    message: str
    started: str
    finished: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod that asks for GPUs.

    Attributes:
        placed: the pod as placing sees it.
        phase: as the API server has it.
        reason: of its status, such as ``UnexpectedAdmissionError``.
        message: of its status.
        ended: whether it has succeeded or failed.
        deleting: whether it is being deleted.
        created: when.
        scheduler: which scheduler is responsible.
        evidence: container and evidence, by the agent's record.
        stamps: what the webhook wrote.
        wishes: annotation (without its domain) and value.
        core_limit: hundredths that a share may use in all; ``None`` where nothing is said.
        errors: what is wrong with the request itself.
        unscheduled: reason and message of the condition ``PodScheduled`` while it is false.
        containers: by the kubelet, init containers first.
        constraints: by what it chooses nodes besides GPUs.
    """

    placed: Pod
    phase: str
    reason: str
    message: str
    ended: bool
    deleting: bool
    created: str
    scheduler: str
    evidence: tuple[tuple[str, str], ...]
    stamps: Stamps
    wishes: tuple[tuple[str, str], ...]
    core_limit: int | None
    errors: tuple[str, ...]
    unscheduled: tuple[str, str]
    containers: tuple[ContainerFacts, ...]
    constraints: Constraints

    @property
    def rejected(self) -> bool:
        """Whether the kubelet has refused to admit it, for lack of devices."""
        return self.phase == "Failed" and self.reason.startswith(_REJECTED)


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
    return PodFacts(
        placed,
        status.get("phase") or "Pending",
        status.get("reason") or "",
        status.get("message") or "",
        has_ended(obj),
        "deletionTimestamp" in metadata,
        metadata.get("creationTimestamp") or "",
        spec.get("schedulerName") or "default-scheduler",
        tuple((name, each.evidence.value) for name, each in written.items() if name in recorded),
        _stamps(annotations, names),
        _wishes(annotations, names),
        wishes.core_limit,
        tuple(str(each) for each in (*errors, *wrong)),
        _unscheduled(status),
        tuple(
            _container(each)
            for field in ("initContainerStatuses", "containerStatuses")
            for each in status.get(field) or ()
        ),
        read_constraints(spec),
    )


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
        (key.removeprefix(f"{names.domain}/"), str(annotations[key]))
        for key in sorted(names.wishes & annotations.keys())
    )


def _stamps(annotations: Mapping[str, Any], names: Names) -> Stamps:
    return Stamps(
        str(annotations.get(names.admission_order, "")), str(annotations.get(names.bind_order, ""))
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
            return each.get("reason") or "", each.get("message") or ""
    return "", ""


def _container(status: Mapping[str, Any]) -> ContainerFacts:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or {}
    running = state.get("running") or {}
    return ContainerFacts(
        status.get("name") or "",
        waiting.get("reason") or "",
        waiting.get("message") or "",
        running.get("startedAt") or ended.get("startedAt") or "",
        ended.get("finishedAt") or "",
    )
