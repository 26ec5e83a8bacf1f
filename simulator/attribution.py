"""Who was right: each ``Allocate`` of a kubelet against what was said of it, and by rules. Pure.

A rule is written down from what its project's source does, without its code. A replay is open: the
calls are those that a kubelet made, each is taken as answered, and a refusal does not keep the
pod's later calls from coming.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of
from simulator.node.judge import Verdict

Who = tuple[str, str, str]
"""Namespace, pod and container."""


@dataclass(frozen=True, slots=True)
class Call:
    """One ``Allocate`` that the kubelet made.

    Attributes:
        who: for whom, as the kubelet recorded.
        resource: the resource's full name.
    """

    who: Who
    resource: str
    ids: frozenset[str]
    unix_ms: float


def allocate_calls(trace: Iterable[Mapping[str, Any]]) -> list[Call]:
    """Take the answered ``Allocate`` calls out of a kubelet's trace, in order."""
    return [
        Call(
            (line["namespace"], line["pod"], line["container"]),
            line["resource"],
            frozenset(line["ids"]),
            line["unix_ms"],
        )
        for line in trace
        if line["event"] == "rpc" and line["rpc"] == "Allocate" and not line["error"]
    ]


def score_agent(
    calls: Sequence[Call],
    log: Iterable[Mapping[str, Any]],
    *,
    resources: Mapping[str, str],
    summarize: Any,
) -> tuple[Counter[Verdict], list[tuple[Call, Who | None]]]:
    """Compare what the agent logged of each ``Allocate`` with whom the kubelet made it for.

    Args:
        calls: the kubelet's side.
        log: the agent's log lines, in order.
        resources: full resource name -> the word the agent's log uses.
        summarize: how the agent's log writes device IDs.

    Returns:
        The verdicts, and every call that was named wrongly with whom was named.
    """
    said: defaultdict[tuple[str, str], deque[Who]] = defaultdict(deque)
    for line in log:
        if line.get("message") == "allocate":
            namespace, _, pod = line["pod"].partition("/")
            said[line["resource"], line["ids"]].append((namespace, pod, line["container"]))
    right, wrong = 0, []
    for call in calls:
        queue = said[resources[call.resource], summarize(call.ids)]
        named = queue.popleft() if queue else None
        if named == call.who:
            right += 1
        else:
            wrong.append((call, named))
    return Counter({Verdict.RIGHT: right, Verdict.WRONG: len(wrong)}), wrong


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod as a rule sees it.

    Attributes:
        pod: namespace and name.
        uid: tells pods of one stamp apart.
        bound_ns: when it was bound; before that it is no candidate.
        stamp_ns: the stamp by which rules know its age.
        containers: all that ask for GPUs.
    """

    pod: str
    uid: str
    bound_ns: int
    stamp_ns: int
    containers: tuple[ContainerDemand, ...]

    @property
    def main(self) -> tuple[ContainerDemand, ...]:
        """Those of ``spec.containers``."""
        return tuple(each for each in self.containers if each.kind is ContainerKind.MAIN)


@dataclass(frozen=True, slots=True)
class Request:
    """One ``Allocate``.

    Attributes:
        pod, container: for whom, truly.
    """

    resource: Resource
    size: int
    at_ns: int
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Named:
    """Whom a rule names: a pod, and the container where the rule goes that far."""

    pod: str
    container: str | None


def score(requests: Iterable[Request], named: Iterable[Named | None]) -> Counter[Verdict]:
    """Compare a rule's answers with the truth; who names a pod alone is right by the pod."""

    def judge(request: Request, name: Named | None) -> Verdict:
        if name is None:
            return Verdict.REFUSED
        right = name.pod == request.pod and name.container in (None, request.container)
        return Verdict.RIGHT if right else Verdict.WRONG

    return Counter(map(judge, requests, named))


def gpu_manager(candidates: Sequence[Candidate], requests: Sequence[Request]) -> list[Named | None]:
    """Apply the rule of ``tkestack/gpu-manager``, for the core calls (K6).

    Source: ``pkg/services/allocator/nvidia/allocator.go``, ``Allocate`` and
    ``getCandidatePods``; ``pkg/utils/util.go``, ``GetPredicateTimeOfPod``. Pending pods of
    the node, not yet assigned, sorted by ``predicate-time``; the
    first container with as many cores that was not served yet. A pod of which only some
    containers were served comes before all others: its first container left has to ask for
    as many cores, or the call is refused.
    """
    served: set[tuple[str, str]] = set()
    unfinished: Candidate | None = None
    answers: list[Named | None] = []
    for request in requests:
        line = [unfinished] if unfinished else in_line(candidates, request)
        found: tuple[Candidate, ContainerDemand] | None = None
        for pod in line:
            left = [each for each in pod.main if (pod.uid, each.name) not in served]
            if unfinished is not None:
                left = left[:1]
            fits = [each for each in left if count_of(each.demand, Resource.CORE) == request.size]
            if fits:
                found = pod, fits[0]
                break
        if found is None:
            answers.append(None)
            continue
        pod, container = found
        served.add((pod.uid, container.name))
        missing = any((pod.uid, each.name) not in served for each in pod.main)
        unfinished = pod if missing else None
        answers.append(Named(pod.pod, container.name))
    return answers


def in_line(candidates: Iterable[Candidate], request: Request) -> list[Candidate]:
    """Return who was bound by then, by age; UIDs stand for the arbitrary order of equal stamps."""
    known = (each for each in candidates if each.bound_ns <= request.at_ns)
    return sorted(known, key=lambda each: (each.stamp_ns, each.uid))
