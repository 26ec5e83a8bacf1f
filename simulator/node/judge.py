"""Who was right: whom somebody named for a call, against whom the kubelet made it for. Pure.

The one judge of demo, benchmarks and tests: of an agent in this process (its diary), of one whose
log is read, and of other projects' rules (:mod:`simulator.rules`).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from agent.allocator.interfaces import ContainerRef
from agent.allocator.slots import summarize
from contract.allocation import Evidence
from contract.resource import Resource
from simulator.kubelet.trace import TraceEvent
from simulator.node.recording_log import LoggedDecision

_SLACK_MS = 5.0
"""Between the clocks of two programs of one machine."""


class Attribution(StrEnum):
    """How an answer compares with the truth."""

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NamedContainer:
    """Whom somebody names for a call.

    Attributes:
        pod: namespace and name; empty where only the UID is known, of the kubelet's checkpoint.
        container: ``None`` where a rule names pods only.
        uid: empty where it is not known: of a pod that only the kubelet has left.
    """

    pod: str
    container: str | None
    uid: str = ""

    @classmethod
    def by(cls, ref: ContainerRef) -> Self:
        """Return whom our agent names."""
        return cls(str(ref.pod) if ref.pod.name else "", ref.container, ref.pod.uid)


def right(
    pod: str, containers: Collection[str], uids: Collection[str], named: NamedContainer
) -> bool:
    """Return whether *named* is whom a call was made for, as far as it says.

    Args:
        pod: the namespace and name of the pod that it was made for.
        containers: its container, and any that cannot be told from it.
        uids: those that the pod has: a static pod has a second one in the API.
        named: whom somebody named.
    """
    if named.container is not None and named.container not in containers:
        return False
    if not named.pod:
        return named.uid in uids
    return named.pod == pod and named.uid in ("", *uids)


@dataclass(frozen=True, slots=True)
class AgentDecision:
    """What an agent said when it assigned places.

    Attributes:
        at_ms: unix time.
        ids: the places, as its log writes them.
    """

    at_ms: float
    resource: Resource
    ids: str
    named: NamedContainer
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """One ``Allocate``: what the kubelet made it for, and what became of it.

    Attributes:
        event: the call, as the kubelet's trace has it.
        answer: what the agent said in it, if anything.
        error: what the kubelet was told instead of an answer.
    """

    resource: Resource
    event: TraceEvent
    verdict: Attribution
    answer: AgentDecision | None
    error: str = ""

    @property
    def evidence(self) -> Evidence | None:
        """By what the agent knew; ``None`` when it answered nothing."""
        return None if self.answer is None else self.answer.evidence


def decisions_in_recording(said: Iterable[LoggedDecision]) -> Iterator[AgentDecision]:
    """Read the answers to ``Allocate`` in what an agent of this process said."""
    for each in said:
        if each.call == "allocate" and each.evidence and each.resource and each.ref:
            ids, named = summarize(each.ids), NamedContainer.by(each.ref)
            yield AgentDecision(each.at_ms, each.resource, ids, named, each.evidence)


def decisions_in_log(lines: Iterable[Mapping[str, Any]]) -> Iterator[AgentDecision]:
    """Read the answers to ``Allocate`` in an agent's log."""
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
    answers: Iterable[AgentDecision],
    resources: Mapping[str, Resource],
    mirrors: Mapping[str, str] | None = None,
) -> list[JudgedCall]:
    """Compare each ``Allocate`` with what the agent said while it was in flight.

    Args:
        calls: the kubelet's, in order.
        answers: the agent's, in order.
        resources: by their full names.
        mirrors: by UID of a static pod, the UID under which the API shows it.
    """
    said: defaultdict[tuple[Resource, str], deque[AgentDecision]] = defaultdict(deque)
    for answer in answers:
        said[answer.resource, answer.ids].append(answer)
    return [
        _judge(call, resources[call.resource], said, mirrors or {})
        for call in calls
        if call.rpc == "Allocate"
    ]


def _judge(
    call: TraceEvent,
    resource: Resource,
    said: Mapping[tuple[Resource, str], deque[AgentDecision]],
    mirrors: Mapping[str, str],
) -> JudgedCall:
    if call.error:
        return JudgedCall(resource, call, Attribution.REFUSED, None, call.error)
    began, ended = call.unix_ms - _SLACK_MS, call.unix_ms + call.took_ms + _SLACK_MS
    queue = said[resource, summarize(call.ids)]
    while queue and queue[0].at_ms < began:  # its call was cut off
        queue.popleft()
    if not queue or queue[0].at_ms > ended:
        return JudgedCall(resource, call, Attribution.WRONG, None, "the agent said nothing")
    answer = queue.popleft()
    uids = [call.pod_uid, *filter(None, [mirrors.get(call.pod_uid)])]
    is_right = right(f"{call.namespace}/{call.pod}", {call.container}, uids, answer.named)
    return JudgedCall(resource, call, Attribution.RIGHT if is_right else Attribution.WRONG, answer)


def count(admissions: Iterable[JudgedCall]) -> Counter[Attribution]:
    """Count the verdicts."""
    return Counter(each.verdict for each in admissions)
