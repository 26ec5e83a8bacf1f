"""Which container does an ``Allocate`` belong to: our resolver against the rules of others.

The same calls through all of them: a burst recorded on a real kubelet. How our agent answers the
calls of a simulated one is what ``tests/adversary`` asks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import Checkpoint
from agent.allocator.resolver import LastCall, resolve
from agent.allocator.resolver import Request as ResolverRequest
from agent.allocator.snapshot import SnapshotContext, build_snapshot
from agent.errors import ResolutionError
from bench.recording import RECORDING, Burst, Recorded, load_burst
from bench.result import Goal, Result, Table
from bench.rules import Rule, gpushare, volcano
from contract.allocation import Evidence
from contract.demand import PodDemand
from contract.names import Names
from contract.resource import Resource
from placement.pods import AdmissionRank, PodId, PodInfo
from simulator.attribution import Candidate, Named, Request, gpu_manager, score
from simulator.node.judge import Verdict

NAME = "attribution"

_RULES: Sequence[tuple[str, Resource, Rule]] = (
    ("gpu-manager", Resource.CORE, gpu_manager),
    ("gpushare", Resource.MEMORY, gpushare),
    ("volcano", Resource.MEMORY, volcano),
)


def run() -> Result:
    """Measure."""
    table, missed = _recorded(load_burst(RECORDING, Names()))
    return Result(NAME, (table,), (Goal("wrong or refused", 0, missed),))


def replay_resolver(
    pods: Sequence[Candidate], calls: Sequence[Recorded], *, witness: bool
) -> list[Named | None]:
    """Return whom our resolver names for each call, from what it could see.

    Stricter than the agent is: a ``List`` that the rate limit turned away is not asked for
    again, and no guess is corrected.

    Args:
        pods: the pods of the burst.
        calls: the kubelet's calls, in order.
        witness: whether ``List`` is looked at where the recording has it.
    """
    uids = {pod.pod: pod.uid for pod in pods}
    known, turn, service = KnownPods(), LastCall(), CurrentPod("", PodId("", "", ""), "")
    written: dict[str, dict[str, dict[Resource, frozenset[str]]]] = {}
    given: dict[Resource, frozenset[str]] = {}  # to the container that is being served
    answers: list[Named | None] = []
    for call in calls:
        request = call.request
        known = known.updated([_view(pod) for pod in pods if pod.bound_ns <= request.at_ns])
        record = build_snapshot(
            checkpoint=Checkpoint(written),
            listed=call.observe.lacking if witness and call.observe is not None else None,
            served=(service,),
            known=known,
            context=SnapshotContext(last_pod=turn.pod, finished=turn.finished),
        )
        ids = frozenset({f"{request.pod}/{request.container}"})
        given[request.resource] = ids
        if len(given) == len(Resource):  # the kubelet writes a container once it has all (K28)
            written.setdefault(uids[request.pod], {})[request.container], given = given, {}
        try:
            found = resolve(ResolverRequest(request.resource, request.size), record, turn)
        except ResolutionError:
            answers.append(None)
            continue
        turn = turn.after(record, found.pod, guessed=found.evidence is Evidence.ORDER)
        if service.id != found.pod:
            service = CurrentPod("", found.pod, found.pod.uid)
        service = service.with_assignment(
            Assignment(found.container.name, request.resource, ids, found.evidence, allocated=True)
        )
        answers.append(Named(str(found.pod), found.container.name))
    return answers


def _view(pod: Candidate) -> PodInfo:
    namespace, _, name = pod.pod.partition("/")
    position = AdmissionRank(pod.stamp_ns, "", "", 0, pod.uid)
    return PodInfo(PodId(namespace, name, pod.uid), PodDemand(pod.containers), position)


def _recorded(burst: Burst) -> tuple[Table, int]:
    requests = [each.request for each in burst.calls]
    ours = score(requests, replay_resolver(burst.pods, burst.calls, witness=True))
    blind = score(requests, replay_resolver(burst.pods, burst.calls, witness=False))
    turned_away = sum(each.observe is None for each in burst.calls)
    rows = [
        _row("gpu-turnstile", "both", ours),
        _row("  without List: by order and the file", "both", blind),
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


def _others(
    pods: Sequence[Candidate], requests: Sequence[Request]
) -> Iterable[tuple[str, str, int, int, int]]:
    for name, resource, rule in _RULES:
        some = [each for each in requests if each.resource is resource]
        yield _row(name, resource.value, score(some, rule(pods, some)))


def _row(name: str, what: str, verdicts: Counter[Verdict]) -> tuple[str, str, int, int, int]:
    right, wrong, refused = (verdicts[each] for each in Verdict)
    return name, what, right, wrong, refused
