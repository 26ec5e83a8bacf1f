"""How other projects settle which pod an ``Allocate`` is for, as pure rules over a burst.

Each rule is written down from what the project's source does, without its code. All of
them guess: they look for a pod that may be asking, mark it as served, and never learn
whether they were right. A replay is open: the calls are those that a kubelet made, each is
taken as answered, and a refusal does not keep the pod's later calls from coming.

None of them looks at ordinary init containers or sidecars (``spec.containers`` only).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of
from simulator.node.judge import Verdict


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod as a rule sees it.

    Attributes:
        pod: namespace and name.
        uid: tells pods of one stamp apart.
        bound_ns: the stamp written when it was bound; before that it is no candidate.
        created_ns: its creation time, whole seconds.
        containers: all that ask for GPUs.
    """

    pod: str
    uid: str
    bound_ns: int
    created_ns: int
    containers: tuple[ContainerDemand, ...]

    @property
    def main(self) -> tuple[ContainerDemand, ...]:
        """Those of ``spec.containers``."""
        return tuple(each for each in self.containers if each.kind is ContainerKind.MAIN)


@dataclass(frozen=True, slots=True)
class Request:
    """One ``Allocate``.

    Attributes:
        resource: of what.
        size: how many places.
        at_ns: when.
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


Rule = Callable[[Sequence[Candidate], Sequence[Request]], list[Named | None]]
"""Names somebody for every request, or ``None`` for a refusal."""


def judge(request: Request, named: Named | None) -> Verdict:
    """Compare a rule's answer with the truth; a rule that names a pod alone is right by the pod."""
    if named is None:
        return Verdict.REFUSED
    right = named.pod == request.pod and named.container in (None, request.container)
    return Verdict.RIGHT if right else Verdict.WRONG


def gpu_manager(candidates: Sequence[Candidate], requests: Sequence[Request]) -> list[Named | None]:
    """Apply the rule of ``tkestack/gpu-manager``, for the core calls.

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
        line = [unfinished] if unfinished else _in_line(candidates, request)
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


def gpushare(candidates: Sequence[Candidate], requests: Sequence[Request]) -> list[Named | None]:
    """Apply the rule of ``AliyunContainerService/gpushare-device-plugin``, for memory calls.

    Source: ``pkg/gpu/nvidia/allocate.go``, ``Allocate``. Pending pods that its scheduler
    extender has assumed, sorted by the time of that (here: the binding); the first whose
    containers *together* ask for as much as this one call, which then counts as assigned. So
    a pod of several GPU containers, for which the kubelet calls several times (fact K1), is
    never found by its own calls. A call for which nobody is found is not failed there: the
    container starts with an environment that says it has no GPU; counted as refused.
    """

    def fits(candidate: Candidate, request: Request) -> bool:
        total = sum(count_of(each.demand, request.resource) for each in candidate.main)
        return total == request.size

    return _pod_at_once(candidates, requests, fits)


def volcano(candidates: Sequence[Candidate], requests: Sequence[Request]) -> list[Named | None]:
    """Apply the rule of ``volcano-sh/devices`` (GPU sharing), for the memory calls.

    Source: ``pkg/plugin/nvidia/server.go``, ``Allocate``. Pending pods that are not assigned
    yet, sorted by ``predicate-time``; the first with any container that asks for as much,
    which then counts as assigned, with all its containers.
    """

    def fits(candidate: Candidate, request: Request) -> bool:
        return any(
            count_of(each.demand, request.resource) == request.size for each in candidate.main
        )

    return _pod_at_once(candidates, requests, fits)


def _pod_at_once(
    candidates: Sequence[Candidate],
    requests: Sequence[Request],
    fits: Callable[[Candidate, Request], bool],
) -> list[Named | None]:
    """Choose whole pods: the first in order that fits, once."""
    assigned: set[str] = set()
    answers: list[Named | None] = []
    for request in requests:
        line = _in_line(candidates, request)
        found = next((pod for pod in line if pod.uid not in assigned and fits(pod, request)), None)
        if found is None:
            answers.append(None)
        else:
            assigned.add(found.uid)
            answers.append(Named(found.pod, None))
    return answers


def _in_line(candidates: Iterable[Candidate], request: Request) -> list[Candidate]:
    """Return who was bound by then, in line; UIDs stand for the arbitrary order of equal stamps."""
    known = (each for each in candidates if each.bound_ns <= request.at_ns)
    return sorted(known, key=lambda each: (each.bound_ns, each.uid))
