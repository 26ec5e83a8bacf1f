"""Rules by which other projects find the container of a call, for comparison. Pure.

A rule follows the behavior of its project's source, without its code. It is applied to the calls
that a kubelet made. Each call counts as successful: after a refusal by the rule, the pod's later
calls still follow.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of
from simulator.node.judge import Attribution, NamedContainer, right


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod as input of a rule.

    Attributes:
        pod: namespace and name.
        uid: orders pods with equal stamps.
        bound_ns: when it was bound; before that it is no candidate.
        stamp_ns: the stamp from which rules derive its age.
        containers: all that request GPUs.
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
class RuleCall:
    """One ``Allocate``.

    Attributes:
        pod, container: the true target.
    """

    resource: Resource
    size: int
    at_ns: int
    pod: str
    container: str


def score(
    requests: Iterable[RuleCall], named: Iterable[NamedContainer | None]
) -> Counter[Attribution]:
    """Compare a rule's choices with the true targets; a choice without a container by pod only."""

    def judge(request: RuleCall, name: NamedContainer | None) -> Attribution:
        if name is None:
            return Attribution.REFUSED
        is_right = right(request.pod, {request.container}, (), name)
        return Attribution.RIGHT if is_right else Attribution.WRONG

    return Counter(map(judge, requests, named))


def gpu_manager(
    candidates: Sequence[Candidate], requests: Sequence[RuleCall]
) -> list[NamedContainer | None]:
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
    answers: list[NamedContainer | None] = []
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
        answers.append(NamedContainer(pod.pod, container.name))
    return answers


def in_line(candidates: Iterable[Candidate], request: RuleCall) -> list[Candidate]:
    """Return the pods bound by then, oldest first; pods with equal stamps by UID."""
    known = (each for each in candidates if each.bound_ns <= request.at_ns)
    return sorted(known, key=lambda each: (each.stamp_ns, each.uid))
