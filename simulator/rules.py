"""Rules by which other projects find the container of a call, for comparison. Pure.

A rule follows the behavior of its project's source, without its code. It is applied to the calls
that a kubelet made. Each call counts as successful: after a refusal by the rule, the pod's later
calls still follow.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource
from simulator.node.judge import Attribution, NamedContainer, right


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod as input of a rule.

    Attributes:
        pod: namespace and name.
        uid: the UID; it orders pods with equal stamps.
        bound_ns: time of its binding; before that it is no candidate.
        stamp_ns: the stamp from which rules derive its age.
        containers: its containers that request GPUs.
    """

    pod: str
    uid: str
    bound_ns: int
    stamp_ns: int
    containers: tuple[ContainerDemand, ...]

    @property
    def main(self) -> tuple[ContainerDemand, ...]:
        """The containers of ``spec.containers``."""
        return tuple(each for each in self.containers if each.kind is ContainerKind.MAIN)


@dataclass(frozen=True, slots=True)
class RuleCall:
    """One ``Allocate`` call.

    Attributes:
        resource: the resource of the plugin.
        size: number of device IDs.
        at_ns: time of the call.
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
    ``getCandidatePods``; ``pkg/utils/util.go``, ``GetPredicateTimeOfPod``. The rule sorts the
    pending, unassigned pods of the node by ``predicate-time``. It takes the first container that
    requests as many cores and was not served yet. If only some containers of a pod were served,
    this pod comes first: its next container must request as many cores, or the call is refused.
    """
    served: set[tuple[str, str]] = set()
    unfinished: Candidate | None = None
    choices: list[NamedContainer | None] = []
    for request in requests:
        queue = [unfinished] if unfinished else bound_by_age(candidates, request)
        found: tuple[Candidate, ContainerDemand] | None = None
        for pod in queue:
            unserved = [each for each in pod.main if (pod.uid, each.name) not in served]
            if unfinished is not None:
                unserved = unserved[:1]
            fits = [
                each for each in unserved if Resource.CORE.count_in(each.demand) == request.size
            ]
            if fits:
                found = pod, fits[0]
                break
        if found is None:
            choices.append(None)
            continue
        pod, container = found
        served.add((pod.uid, container.name))
        missing = any((pod.uid, each.name) not in served for each in pod.main)
        unfinished = pod if missing else None
        choices.append(NamedContainer(pod.pod, container.name))
    return choices


def bound_by_age(candidates: Iterable[Candidate], request: RuleCall) -> list[Candidate]:
    """Return the pods bound before the call, oldest first; pods with equal stamps by UID."""
    bound = (each for each in candidates if each.bound_ns <= request.at_ns)
    return sorted(bound, key=lambda each: (each.stamp_ns, each.uid))
