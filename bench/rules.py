"""How other projects settle which pod an ``Allocate`` is for, beside gpu-manager's rule.

All of them guess: they look for a pod that may be asking, mark it as served, and never learn
whether they were right. None looks at ordinary init containers or sidecars (``spec.containers``
only).
"""

from collections.abc import Callable, Sequence

from contract.resource import count_of
from simulator.node.judge import Named
from simulator.rules import Candidate, Request, in_line

Rule = Callable[[Sequence[Candidate], Sequence[Request]], list[Named | None]]
"""Names somebody for every request, or ``None`` for a refusal."""


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
        line = in_line(candidates, request)
        found = next((pod for pod in line if pod.uid not in assigned and fits(pod, request)), None)
        if found is None:
            answers.append(None)
        else:
            assigned.add(found.uid)
            answers.append(Named(found.pod, None))
    return answers
