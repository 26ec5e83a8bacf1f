"""Which container does an ``Allocate`` belong to: our resolver against the rules of others.

The same calls through all of them: a burst recorded on a real kubelet, and bursts of the
simulated one, where our agent also answers the calls.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from agent.allocator.model.pod_view import PodId, PodView, QueuePosition
from agent.allocator.model.podresources import Snapshot
from agent.allocator.resolver.resolve import Ask, resolve
from agent.errors import ResolutionError
from bench.bursts import draw_burst
from bench.recording import RECORDING, Burst, Recorded, load_burst
from bench.result import Goal, Result, Table
from bench.rules import (
    Candidate,
    Named,
    Request,
    Rule,
    by_bind_time,
    by_creation_time,
    gpu_manager,
    gpushare,
    judge,
    oldest_first,
    volcano,
)
from contract.demand import PodDemand
from contract.names import Names
from contract.resource import Resource
from simulator.node.identify import identify
from simulator.node.judge import Admission, Verdict
from simulator.node.node import Node
from simulator.node.options import NodeOptions

NAME = "attribution"

_RULES: Sequence[tuple[str, Resource, Rule]] = (
    ("gpu-manager, bind time", Resource.CORE, gpu_manager(by_bind_time)),
    ("gpu-manager, creation time", Resource.CORE, gpu_manager(by_creation_time)),
    ("  not refusing, bind time", Resource.CORE, oldest_first(by_bind_time)),
    ("  not refusing, creation time", Resource.CORE, oldest_first(by_creation_time)),
    ("gpushare, bind time", Resource.MEMORY, gpushare(by_bind_time)),
    ("volcano, bind time", Resource.MEMORY, volcano(by_bind_time)),
)


def run(*, pods: int = 80, seeds: Sequence[int] = (1, 2, 3)) -> Result:
    """Measure.

    Args:
        pods: how many pods a simulated burst has.
        seeds: one simulated burst each.

    Raises:
        OSError: the recording cannot be read.
        InvalidRecording: the recording does not hold what it should.
    """
    burst = load_burst(RECORDING, Names())
    recorded, wrong_recorded = _recorded(burst)
    simulated, wrong_simulated = _simulated(pods, seeds)
    return Result(
        NAME,
        (recorded, simulated),
        (
            Goal("wrong or refused, recorded burst", 0, wrong_recorded),
            Goal("wrong or refused, simulated bursts", 0, wrong_simulated),
        ),
    )


def replay_resolver(
    pods: Sequence[Candidate], calls: Sequence[Recorded], *, witness: bool
) -> list[Named | None]:
    """Return whom our resolver names for each call, from what it could see.

    Stricter than the agent is: a ``List`` that the rate limit turned away is not asked for
    again, and PreStart corrects nothing.

    Args:
        pods: the pods of the burst.
        calls: the kubelet's calls, in order.
        witness: whether ``List`` is looked at where the recording has it.
    """
    views = [(pod.bound_ns, _view(pod)) for pod in pods]
    served: set[tuple[PodId, str, Resource]] = set()
    answers: list[Named | None] = []

    def is_served(pod: PodId, container: str, resource: Resource) -> bool:
        return (pod, container, resource) in served

    for call in calls:
        known = [view for bound_ns, view in views if bound_ns <= call.request.at_ns]
        listed = None
        if witness and call.observe is not None:
            listed = identify(Snapshot(call.observe.lacking), known, {})
        try:
            found = resolve(
                Ask(call.request.resource, call.request.size),
                views=known,
                served=is_served,
                listed=listed,
            )
        except ResolutionError:
            answers.append(None)
            continue
        served.add((found.pod, found.container.name, call.request.resource))
        answers.append(Named(str(found.pod), found.container.name))
    return answers


def _view(pod: Candidate) -> PodView:
    namespace, _, name = pod.pod.partition("/")
    position = QueuePosition(pod.bound_ns, "", "", pod.created_ns, pod.uid)
    return PodView(PodId(namespace, name, pod.uid), PodDemand(pod.containers), position)


def _recorded(burst: Burst) -> tuple[Table, int]:
    requests = [each.request for each in burst.calls]
    ours = _judged(requests, replay_resolver(burst.pods, burst.calls, witness=True))
    blind = _judged(requests, replay_resolver(burst.pods, burst.calls, witness=False))
    turned_away = sum(each.observe is None for each in burst.calls)
    rows = [
        _row("gpu-turnstile", "both", ours),
        _row("  without List: by order alone", "both", blind),
        *_others(burst.pods, requests),
    ]
    table = Table(
        f"A recorded burst of kubelet 1.36: {len(burst.pods)} pods, {len(requests)} Allocates",
        ("rule", "calls", "right", "wrong", "refused"),
        rows,
        (
            f"{turned_away} of {len(requests)} List calls had been turned away (fact K5).",
            _OPEN,
        ),
    )
    return table, ours[Verdict.WRONG] + ours[Verdict.REFUSED]


_OPEN = (
    "gpushare and volcano name pods, not containers: right is whoever names the pod. A refusal "
    "does not end the pod in this replay, a real kubelet would reject it."
)


def _simulated(pods: int, seeds: Sequence[int]) -> tuple[Table, int]:
    totals: dict[tuple[str, str], Counter[Verdict]] = {}
    calls = 0
    for seed in seeds:
        manifests = draw_burst(pods, seed=seed, init_containers=False)
        with Node(NodeOptions(seed=seed)) as node:
            admissions = node.admit(manifests)
            candidates = [_candidate(each) for each in node.views()]
        requests = [_request(each) for each in admissions]
        calls += len(requests)
        _add(totals, ("gpu-turnstile", "both"), Counter(each.verdict for each in admissions))
        for name, resource, rule in _RULES:
            some = [each for each in requests if each.resource is resource]
            _add(totals, (name, resource.value), _judged(some, rule(candidates, some)))
    table = Table(
        f"{len(seeds)} bursts of the simulated kubelet: {pods} pods each, {calls} Allocates",
        ("rule", "calls", "right", "wrong", "refused"),
        [_row(name, what, verdicts) for (name, what), verdicts in totals.items()],
        ("Our agent answers the simulated kubelet's calls over its sockets.",),
    )
    ours = totals["gpu-turnstile", "both"]
    return table, ours[Verdict.WRONG] + ours[Verdict.REFUSED]


def _request(admission: Admission) -> Request:
    event = admission.event
    at_ns = int(event.unix_ms * 1e6)
    return Request(admission.resource, len(event.ids), at_ns, admission.pod, event.container)


def _candidate(view: PodView) -> Candidate:
    bound_ns, _, _, created_ns, uid = view.position
    return Candidate(str(view.id), uid, bound_ns, created_ns, view.demand.containers)


def _others(
    pods: Sequence[Candidate], requests: Sequence[Request]
) -> Iterable[tuple[str, str, int, int, int]]:
    for name, resource, rule in _RULES:
        some = [each for each in requests if each.resource is resource]
        yield _row(name, resource.value, _judged(some, rule(pods, some)))


def _judged(requests: Sequence[Request], named: Sequence[Named | None]) -> Counter[Verdict]:
    return Counter(judge(*each) for each in zip(requests, named, strict=True))


def _add(
    totals: dict[tuple[str, str], Counter[Verdict]], key: tuple[str, str], more: Counter[Verdict]
) -> None:
    totals.setdefault(key, Counter()).update(more)


def _row(name: str, what: str, verdicts: Counter[Verdict]) -> tuple[str, str, int, int, int]:
    right, wrong, refused = (verdicts[each] for each in Verdict)
    return name, what, right, wrong, refused
