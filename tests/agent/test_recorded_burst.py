"""A burst on a real kubelet, recorded: 80 pods of 1 to 3 GPU containers from 32 clients at once.

The target of a call is read off the recording itself: at any moment one pod lacked something, and
in it the target is the first container that did (K1, K3).
"""

import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import Checkpoint, ListedContainer, ListedPod
from agent.allocator.resolver import LastCall, TargetRequest, resolve
from agent.allocator.snapshot_builder import SnapshotContext, build_snapshot
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import PodDemand
from contract.requests import read_pod_demand
from contract.resource import Resource
from placement.pods import AdmissionRank, PodId, PodInfo
from simulator.node.judge import Attribution, NamedContainer
from simulator.rules import Candidate, RuleCall, gpu_manager, score
from tests.agent.builders import pods_of
from tests.agent.fakes import NAMES, RESOURCES

RECORDING = Path(__file__).parents[1] / "data" / "kubelet-1.36-burst80.json.gz"

_CALLS_OF_A_CONTAINER = 4
"""A preferred call and an ``Allocate`` for each of the two resources (facts K1, K2)."""


class RecordedCalls(NamedTuple):
    """A preferred call for one resource of a container, and the ``Allocate`` after it."""

    request: RuleCall
    listed: Sequence[ListedPod] | None
    """Pods that still lacked something; ``None`` if the rate limit turned ``List`` away (K5)."""


def load_burst() -> tuple[Sequence[Candidate], Sequence[RecordedCalls]]:
    """If ``List`` was turned away in one call of a container, the others show the target (K1)."""
    document = json.loads(gzip.decompress(RECORDING.read_bytes()))
    pods = tuple(map(_candidate, document["pods"]))
    calls = [each for each in document["calls"] if each["rpc"] != "PreStartContainer"]
    found: list[RecordedCalls] = []
    for begin in range(0, len(calls), _CALLS_OF_A_CONTAINER):
        group = calls[begin : begin + _CALLS_OF_A_CONTAINER]
        pod, container = _target(group, pods)
        for prefer, allocate in (group[:2], group[2:]):
            request = RuleCall(
                RESOURCES[allocate["resource"]],
                allocate["ids"],
                document["first_call_ns"] + int(allocate["ms"] * 1e6),
                pod,
                container,
            )
            listed = tuple(_listed(prefer["lacking"])) if "lacking" in prefer else None
            found.append(RecordedCalls(request, listed))
    return pods, found


def _candidate(pod: Mapping[str, Any]) -> Candidate:
    spec = {
        "containers": [
            {"name": each["name"], "resources": {"limits": each["limits"]}}
            for each in pod["containers"]
        ]
    }
    demand, _ = read_pod_demand({"spec": spec}, NAMES)
    return Candidate(pod["pod"], pod["uid"], pod["bind_ns"], pod["bind_ns"], demand.containers)


def _target(group: Sequence[Mapping[str, Any]], pods: Sequence[Candidate]) -> tuple[str, str]:
    """Return the container of four calls: the first that lacked the requested resource."""
    by_name = {each.pod: each for each in pods}
    for call in group:
        for pod, containers in call.get("lacking", {}).items():
            lacking = [
                each.name
                for each in by_name[pod].containers
                if call["resource"] not in containers.get(each.name, ())
            ]
            if lacking:
                return pod, lacking[0]
    raise ValueError(f"no target is shown of these calls: {group}")


def _listed(lacking: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[ListedPod]:
    """Build listed pods; the recording has the resources of which a container held devices."""
    for key, containers in lacking.items():
        listed = (
            ListedContainer(name, {RESOURCES[each]: frozenset({f"{key}/{name}"}) for each in held})
            for name, held in containers.items()
        )
        namespace, _, pod = key.partition("/")
        yield ListedPod(namespace, pod, tuple(listed))


PODS, CALLS = load_burst()


def test_a_call_with_a_witness_is_resolved_to_the_container_the_kubelet_was_admitting() -> None:
    """Each as the first call of an agent, to which the API shows all pods."""
    infos = {each.pod: _info(each) for each in PODS}
    witnessed = 0
    for call in CALLS:
        request = call.request
        snapshot = build_snapshot(
            checkpoint=Checkpoint(),
            listed=call.listed,
            served=(),
            known=pods_of(*infos.values()),
            context=SnapshotContext(confirmed={each.id.uid for each in infos.values()}),
        )
        found = resolve(TargetRequest(request.resource, request.size), snapshot, LastCall())
        if call.listed is None:
            assert found.evidence is Evidence.ORDER
            continue
        witnessed += 1
        assert (found.pod, found.evidence) == (infos[request.pod].id, Evidence.WITNESS)
        assert found.container.name == request.container
        # Guards the truth: a wrong reading of it would show here.
        assert request.resource.count_in(found.container.demand) == request.size
    assert (len(PODS), len(CALLS), witnessed) == (80, 268, 247)


def _replay(*, listed: bool) -> list[NamedContainer | None]:
    """Return the container that our resolver names in each call, with an agent's memory of earlier.

    Stricter than the agent is: a ``List`` that the rate limit turned away is not repeated, and no
    guess is corrected. *listed* is whether ``List`` is used where the recording has it.
    """
    uids = {pod.pod: pod.uid for pod in PODS}
    known, last_call, current = KnownPods(), LastCall(), CurrentPod(PodId("", "", ""), "")
    checkpoint: dict[str, dict[str, dict[Resource, frozenset[str]]]] = {}
    allocated: dict[Resource, frozenset[str]] = {}  # to the target
    named: list[NamedContainer | None] = []
    for call in CALLS:
        request = call.request
        known = known.updated([_info(pod) for pod in PODS if pod.bound_ns <= request.at_ns])
        snapshot = build_snapshot(
            checkpoint=Checkpoint(checkpoint),
            listed=call.listed if listed else None,
            served=(current,),
            known=known,
            context=SnapshotContext(last_pod=last_call.pod, finished=last_call.finished),
        )
        ids = frozenset({f"{request.pod}/{request.container}"})
        allocated[request.resource] = ids
        if len(allocated) == len(Resource):  # the kubelet writes a container once it has all (K28)
            checkpoint.setdefault(uids[request.pod], {})[request.container] = allocated
            allocated = {}
        try:
            found = resolve(TargetRequest(request.resource, request.size), snapshot, last_call)
        except ResolutionError:
            named.append(None)
            continue
        last_call = last_call.after(snapshot, found.pod, guessed=found.evidence is Evidence.ORDER)
        if current.id != found.pod:
            current = CurrentPod(found.pod, found.pod.uid)
        current = current.with_assignment(
            Assignment(found.container.name, request.resource, ids, found.evidence, allocated=True)
        )
        named.append(NamedContainer(str(found.pod), found.container.name))
    return named


@functools.cache
def _info(pod: Candidate) -> PodInfo:
    namespace, _, name = pod.pod.partition("/")
    rank = AdmissionRank(pod.stamp_ns, "", "", 0, pod.uid)
    return PodInfo(PodId(namespace, name, pod.uid), PodDemand(pod.containers), rank)


@pytest.mark.parametrize(("listed", "expected"), [(True, (268, 0, 0)), (False, (212, 54, 2))])
def test_with_list_every_call_is_right_and_without_it_guesses_are_wrong(
    listed: bool, expected: tuple[int, int, int]
) -> None:
    """What docs/benchmarks.md says: calls that were right, wrong and refused."""
    found = score([each.request for each in CALLS], _replay(listed=listed))
    assert tuple(found[each] for each in Attribution) == expected


def test_the_oldest_pod_with_equal_cores_is_mostly_the_wrong_one() -> None:
    """By gpu-manager's rule, in its calls for cores, on the same burst."""
    cores = [each.request for each in CALLS if each.request.resource is Resource.CORE]
    found = score(cores, gpu_manager(PODS, cores))
    assert tuple(found[each] for each in Attribution) == (8, 100, 26)
