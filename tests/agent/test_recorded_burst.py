"""A burst on a real kubelet, recorded: 80 pods of 1 to 3 GPU containers from 32 clients at once.

Whom a call was for is read off the recording itself, by :mod:`tests.agent.recorded_burst`: at any
moment one pod was lacking, and within it the first container that lacked (facts K1 and K3).
"""

from collections.abc import Sequence

import pytest

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import Checkpoint
from agent.allocator.resolver import LastCall, resolve
from agent.allocator.resolver import TargetRequest as ResolverRequest
from agent.allocator.snapshot_builder import SnapshotContext, build_snapshot
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import PodDemand
from contract.resource import Resource
from placement.pods import AdmissionRank, PodId, PodInfo
from simulator.node.judge import Attribution, NamedContainer
from simulator.rules import Candidate, gpu_manager, score
from tests.agent.builders import pods_of
from tests.agent.fakes import NAMES
from tests.agent.recorded_burst import RECORDING, Recorded, load_burst


def test_a_call_with_a_witness_is_resolved_to_the_container_the_kubelet_was_admitting() -> None:
    """Each as the first call of an agent, to which the API shows all pods."""
    burst = load_burst(RECORDING, NAMES)
    views = {each.pod: _view(each) for each in burst.pods}
    witnessed = 0
    for call in burst.calls:
        record = build_snapshot(
            checkpoint=Checkpoint(),
            listed=call.observe.lacking if call.observe is not None else None,
            served=(),
            known=pods_of(*views.values()),
            context=SnapshotContext(confirmed={each.id.uid for each in views.values()}),
        )
        found = resolve(
            ResolverRequest(call.request.resource, call.request.size), record, LastCall()
        )
        if call.observe is None:  # refused by the kubelet's rate limit (K5)
            assert found.evidence is Evidence.ORDER
            continue
        witnessed += 1
        assert (found.pod, found.evidence) == (views[call.request.pod].id, Evidence.WITNESS)
        assert found.container is not None
        assert found.container.name == call.request.container
        # Guards the truth: a wrong reading of it would show here.
        assert call.request.resource.count_in(found.container.demand) == call.request.size
    assert (len(burst.pods), len(burst.calls), witnessed) == (80, 268, 247)


def _replay(
    pods: Sequence[Candidate], calls: Sequence[Recorded], *, witness: bool
) -> list[NamedContainer | None]:
    """Return whom our resolver names for each call, with all that an agent remembers between them.

    Stricter than the agent is: a ``List`` that the rate limit turned away is not asked for
    again, and no guess is corrected.

    Args:
        pods: the pods of the burst.
        calls: the kubelet's calls, in order.
        witness: whether ``List`` is looked at where the recording has it.
    """
    uids = {pod.pod: pod.uid for pod in pods}
    known, turn, service = KnownPods(), LastCall(), CurrentPod(PodId("", "", ""), "")
    written: dict[str, dict[str, dict[Resource, frozenset[str]]]] = {}
    given: dict[Resource, frozenset[str]] = {}  # to the container that is being served
    named: list[NamedContainer | None] = []
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
            named.append(None)
            continue
        turn = turn.after(record, found.pod, guessed=found.evidence is Evidence.ORDER)
        if service.id != found.pod:
            service = CurrentPod(found.pod, found.pod.uid)
        service = service.with_assignment(
            Assignment(found.container.name, request.resource, ids, found.evidence, allocated=True)
        )
        named.append(NamedContainer(str(found.pod), found.container.name))
    return named


def _view(pod: Candidate) -> PodInfo:
    namespace, _, name = pod.pod.partition("/")
    position = AdmissionRank(pod.stamp_ns, "", "", 0, pod.uid)
    return PodInfo(PodId(namespace, name, pod.uid), PodDemand(pod.containers), position)


@pytest.mark.parametrize(("witness", "expected"), [(True, (268, 0, 0)), (False, (212, 54, 2))])
def test_with_list_every_call_is_right_and_without_it_guesses_are_wrong(
    witness: bool, expected: tuple[int, int, int]
) -> None:
    """What docs/benchmarks.md says: calls that were right, wrong and refused."""
    burst = load_burst(RECORDING, NAMES)
    requests = [each.request for each in burst.calls]
    found = score(requests, _replay(burst.pods, burst.calls, witness=witness))
    assert tuple(found[each] for each in Attribution) == expected


def test_the_oldest_pod_with_equal_cores_is_mostly_the_wrong_one() -> None:
    """By gpu-manager's rule, in its calls for cores, on the same burst."""
    burst = load_burst(RECORDING, NAMES)
    cores = [each.request for each in burst.calls if each.request.resource is Resource.CORE]
    found = score(cores, gpu_manager(burst.pods, cores))
    assert tuple(found[each] for each in Attribution) == (8, 100, 26)
