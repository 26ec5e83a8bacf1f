"""Checks whether the container named for a call is the one that the kubelet made it for. Pure.

Used by demo, benchmarks and tests: for an agent in this process (its recording log), for one whose
log is read, and for other projects' rules (:mod:`simulator.rules`).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from agent.allocator.slots import summarize
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.resource import Resource
from simulator.kubelet.trace import TraceEvent
from simulator.node.recording_log import LoggedDecision

_SLACK_MS = 5.0
"""Largest difference between the clocks of two programs on one machine."""


class Attribution(StrEnum):
    """Whether the right container was named for a call, a wrong one or none."""

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NamedContainer:
    """The container that an agent or a rule names for a call.

    Attributes:
        pod: namespace and name; empty if only the UID is known, from the kubelet's checkpoint.
        container: ``None`` if a rule names pods only.
        uid: empty if unknown.
    """

    pod: str
    container: str | None
    uid: str = ""

    @classmethod
    def by(cls, ref: ContainerRef) -> Self:
        """Return the container that our agent names."""
        return cls(str(ref.pod) if ref.pod.name else "", ref.container, ref.pod.uid)


def right(
    pod: str, containers: Collection[str], uids: Collection[str], named: NamedContainer
) -> bool:
    """Return whether *named* is the target of a call.

    Args:
        pod: namespace and name of the target's pod.
        containers: the target, and containers that cannot be distinguished from it.
        uids: the pod's UIDs: a static pod has a second one in the API.
        named: the container that was named.
    """
    if named.container is not None and named.container not in containers:
        return False
    if not named.pod:
        return named.uid in uids
    return named.pod == pod and named.uid in ("", *uids)


@dataclass(frozen=True, slots=True)
class AgentDecision:
    """An agent's decision in one ``Allocate``.

    Attributes:
        at_ms: unix time.
        ids: the device IDs, as summarized in its log.
    """

    at_ms: float
    resource: Resource
    ids: str
    named: NamedContainer
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """One ``Allocate`` with its true target and the agent's decision.

    Attributes:
        event: the call in the kubelet's trace.
        decision: the agent's decision, if any.
        error: the error that the kubelet got instead of a response.
    """

    resource: Resource
    event: TraceEvent
    verdict: Attribution
    decision: AgentDecision | None
    error: str = ""

    @property
    def evidence(self) -> Evidence | None:
        """The agent's evidence; ``None`` without a decision."""
        return None if self.decision is None else self.decision.evidence


def decisions_in_recording(decisions_by_ids: Iterable[LoggedDecision]) -> Iterator[AgentDecision]:
    """Read the decisions in ``Allocate`` from a recording log."""
    for each in decisions_by_ids:
        if each.call == "allocate" and each.evidence and each.resource and each.ref:
            ids, named = summarize(each.ids), NamedContainer.by(each.ref)
            yield AgentDecision(each.at_ms, each.resource, ids, named, each.evidence)


def decisions_in_log(lines: Iterable[Mapping[str, Any]]) -> Iterator[AgentDecision]:
    """Read the decisions in ``Allocate`` from an agent's log."""
    for line in lines:
        if line.get("message") == "allocate":
            yield AgentDecision(
                datetime.fromisoformat(line["time"]).timestamp() * 1000,
                Resource(line["resource"]),
                line["ids"],
                NamedContainer(line["pod"], line["container"]),
                Evidence(line["evidence"]),
            )


def judge(
    calls: Iterable[TraceEvent],
    decisions: Iterable[AgentDecision],
    resources: Mapping[str, Resource],
    mirrors: Mapping[str, str] | None = None,
) -> list[JudgedCall]:
    """Compare each ``Allocate`` with the agent's decision while it was in flight.

    Args:
        calls: the kubelet's calls, in order.
        decisions: the agent's decisions, in order.
        resources: by their full names.
        mirrors: UID of a static pod -> UID of its mirror pod.
    """
    decisions_by_ids: defaultdict[tuple[Resource, str], deque[AgentDecision]] = defaultdict(deque)
    for decision in decisions:
        decisions_by_ids[decision.resource, decision.ids].append(decision)
    return [
        _judge(call, resources[call.resource], decisions_by_ids, mirrors or {})
        for call in calls
        if call.rpc == "Allocate"
    ]


def _judge(
    call: TraceEvent,
    resource: Resource,
    decisions_by_ids: Mapping[tuple[Resource, str], deque[AgentDecision]],
    mirrors: Mapping[str, str],
) -> JudgedCall:
    if call.error:
        return JudgedCall(resource, call, Attribution.REFUSED, None, call.error)
    began, ended = call.unix_ms - _SLACK_MS, call.unix_ms + call.took_ms + _SLACK_MS
    queue = decisions_by_ids[resource, summarize(call.ids)]
    while queue and queue[0].at_ms < began:  # the call of that decision was cut off
        queue.popleft()
    if not queue or queue[0].at_ms > ended:
        return JudgedCall(resource, call, Attribution.WRONG, None, "the agent said nothing")
    decision = queue.popleft()
    uids = [call.pod_uid, *filter(None, [mirrors.get(call.pod_uid)])]
    is_right = right(f"{call.namespace}/{call.pod}", {call.container}, uids, decision.named)
    return JudgedCall(
        resource, call, Attribution.RIGHT if is_right else Attribution.WRONG, decision
    )


def count(admissions: Iterable[JudgedCall]) -> Counter[Attribution]:
    """Count the verdicts."""
    return Counter(each.verdict for each in admissions)
