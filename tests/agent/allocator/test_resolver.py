"""The target of a call (R3, R4)."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from agent.allocator.interfaces import HeldSlots
from agent.allocator.resolver import LastCall, Resolution, TargetRequest, assumed_container, resolve
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import SnapshotPod
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import Demand
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    cases,
    container,
    ids,
    listed,
    pod_id,
    pods_of,
    snapshot_of,
    snapshot_pod,
    view,
)

CORES, BLOCKS = ids("GPU-0", range(50)), ids("GPU-0", range(4))
FULL: HeldSlots = {CORE: CORES, MEMORY: BLOCKS}
HALF: HeldSlots = {MEMORY: BLOCKS}
WITNESS, ORDER = Evidence.WITNESS, Evidence.ORDER

# The table has pods "a" to "c" that lack both, or cores ("half"), or nothing ("full").
VIEW_A, VIEW_B, VIEW_C = (view(name, at=at) for at, name in enumerate("abc", 1))
A, B, C = map(snapshot_pod, (VIEW_A, VIEW_B, VIEW_C))
A_HALF, C_HALF = snapshot_pod(VIEW_A, c0=HALF), snapshot_pod(VIEW_C, c0=HALF)
A_FULL, C_FULL = snapshot_pod(VIEW_A, c0=FULL), snapshot_pod(VIEW_C, c0=FULL)
A_AGAIN = snapshot_pod(view("a", uid="again", at=9))  # the same containers
A_OTHER = snapshot_pod(view("a", container("main"), uid="other", at=9))
B_ENDED = snapshot_pod(replace(VIEW_B, terminal=True))
B_RUNS = snapshot_pod(replace(VIEW_B, running=True))
B_REQUESTS_60 = snapshot_pod(view("b", container("c0", 60, 4), at=2))


def _nameless(name: str, **held: HeldSlots | None) -> SnapshotPod:
    entry = listed(name, **held)
    has = {each.name: each.held for each in entry.containers if each.held}
    return SnapshotPod(pod_id(name, ""), "", None, entry, has)


STATIC = _nameless("static", c0=None)


def _blind(*pods: SnapshotPod) -> list[SnapshotPod]:
    return [replace(each, listed=None) for each in pods]


def _snapshot(*pods: SnapshotPod) -> AllocationSnapshot:
    return AllocationSnapshot(pods, listing=any(each.listed is not None for each in pods))


def _last_call(*pods: SnapshotPod, pod: PodInfo | None = None, guessed: bool = False) -> LastCall:
    if pod is None:
        return LastCall(None, Counter(each.signature for each in pods), guessed=False)
    return LastCall(None, {}, guessed=False).after(snapshot_of(*pods), pod.id, guessed=guessed)


NEW, STARTED = _last_call(), LastCall()
AFTER_A = _last_call(A, pod=VIEW_A)
AFTER_FULL_A = _last_call(A_FULL, pod=VIEW_A)
GUESSED_A = _last_call(A, pod=VIEW_A, guessed=True)
AFTER_C = _last_call(A, C, pod=VIEW_C)
A_OF_TWO = _last_call(A, B, pod=VIEW_A)
B_FINISHED = replace(_last_call(A, B), finished=frozenset({VIEW_B.id}))
B_RULED_OUT = replace(AFTER_FULL_A, ruled_out=frozenset({VIEW_B.id}))


CORES_50 = TargetRequest(CORE, 50)


def _resolve(
    snapshot: AllocationSnapshot, last_call: LastCall = NEW, request: TargetRequest = CORES_50
) -> Resolution:
    return resolve(request, snapshot, last_call)


@cases(
    "pods, last_call, found",
    {
        "a single new pod": ([A_FULL, B], AFTER_FULL_A, "witness: u-b"),
        "which may be another pod of its name": ([replace(B, sure=False)], NEW, "order: u-b"),
        "no new pod: the pod of the last call": ([A_HALF], AFTER_A, "witness: u-a"),
        "two new pods: the other was rejected without a call": ([A, B], NEW, "order: u-b u-a"),
        "one of two new pods requests this": ([A, B_REQUESTS_60], NEW, "witness: u-a"),
        "the last one, and a new pod lacks something": ([A, B_REQUESTS_60], AFTER_A, "order: u-a"),
        "the last one was a guess": ([A], GUESSED_A, "order: u-a"),
        "List shows the slots of the guess": ([A_HALF], GUESSED_A, "witness: u-a"),
        "an agent's first call: any may be new": ([A, B, C_FULL], STARTED, "order: u-b u-a"),
        "one that runs has been admitted": ([A, B_RUNS], STARTED, "order: u-a"),
        "as a last resort a pod listed before": ([A_FULL, B], A_OF_TWO, "order: u-b"),
        "of these one whose admission has not ended": ([A, B], B_FINISHED, "order: u-a"),
        "the only new pod was guessed wrongly": ([A_FULL, B], B_RULED_OUT, "order: u-b"),
        "the slots of another are free": ([A, replace(B, ended=True)], NEW, "witness: u-a"),
        "another has ended": ([A, B_ENDED], NEW, "witness: u-a"),
        "a name with other containers is new": ([A_OTHER], AFTER_A, "witness: other"),
        "a second entry of a name (K20)": ([A_FULL, A_AGAIN], AFTER_FULL_A, "witness: again"),
        "the newer if both show nothing": ([A, A_AGAIN], AFTER_A, "witness: again"),
        "a listed name may be another pod by now": ([A_AGAIN, B, C_FULL], AFTER_C, "order: u-b"),
        "no listed name is another pod": ([A, B, C_FULL], AFTER_C, "witness: u-b"),
        "another is known to the kubelet alone": ([A, STATIC], NEW, "order: u-a"),
        "no List: the oldest": (_blind(B, A, C_FULL), STARTED, "order: u-a u-b"),
        "no List: the last one": (_blind(A, B), LastCall(VIEW_B.id), "order: u-b u-a"),
        "no List: one that has something": (_blind(A, C_HALF), STARTED, "order: u-c u-a"),
    },
)
def test_the_likeliest_lacking_pod_is_the_target_and_a_witness_if_it_is_the_only_one(
    pods: list[SnapshotPod], last_call: LastCall, found: str
) -> None:
    target = _resolve(_snapshot(*pods), last_call)
    uids = " ".join(each.pod.uid for each in (target, *target.rivals))
    assert f"{target.evidence}: {uids}" == found
    assert {each.evidence for each in target.rivals} <= {ORDER}


def test_a_pod_that_is_new_since_a_wrong_guess_comes_before_one_that_was_listed_then() -> None:
    """K1: an admission that began later proves that all earlier ones have ended."""
    back = AFTER_FULL_A.after(snapshot_of(A_FULL, B), VIEW_B.id, guessed=True).before_wrong_guess()
    again = snapshot_pod(view("b", uid="again", at=9))
    found = _resolve(snapshot_of(A_FULL, again, snapshot_pod(VIEW_C)), back)
    assert [each.pod.uid for each in (found, *found.rivals)] == ["u-c", "again"]
    at_refusal = back.refused(snapshot_of(A_FULL, again)).at_wrong_guess
    assert at_refusal is None, "a refusal ends all admissions before it"


@pytest.mark.parametrize("blind", [False, True])
def test_the_pod_that_a_correction_proves_is_admitted_and_the_guess_is_over_unless_blind(
    blind: bool,
) -> None:
    """Without ``List`` the guessed pod may not be listed yet."""
    fallback = None if blind else STARTED
    guessed = LastCall(VIEW_A.id, {}, finished=frozenset({VIEW_B.id}), fallback=fallback)
    found = guessed.corrected(VIEW_B.id)
    assert (found.pod, found.guessed) == (VIEW_B.id, False)
    assert found.finished == (set() if blind else {VIEW_A.id})


def test_the_entry_of_another_pod_with_its_name_says_nothing_about_a_pod() -> None:
    """The entry of a pod that was deleted by force stays a while (K20)."""
    unsure = replace(B, sure=False)
    served = replace(unsure, checkpointed={"c0": FULL})
    assert LastCall().after(snapshot_of(A_FULL, unsure), VIEW_A.id, guessed=False).finished == set()
    assert LastCall().refused(snapshot_of(unsure)).finished == set()
    assert LastCall().refused(snapshot_of(served)).finished == {VIEW_B.id}


def test_a_pod_that_may_have_an_entry_comes_before_older_pods() -> None:
    """The watch has not shown yet that the likelier pod of this name was deleted."""
    likelier = view("b", container("c0", 60, 4), at=2)
    other = view("b", uid="other", at=3)
    listed_b = replace(snapshot_pod(likelier), namesakes=(snapshot_pod(other),))
    snapshot = AllocationSnapshot((A, listed_b), listing=True, known=pods_of(likelier, other))
    assert _resolve(snapshot).pod == other.id


THREE = view("p", container("i", 20, 2, kind=INIT), container("c0"), container("c1", 30, 4))
NO_MEMORY = view("p", container("c0", 100, 0), container("c1", 50, 4))


@pytest.mark.parametrize(
    ("pod", "resource", "size", "name"),
    [
        (snapshot_pod(THREE), CORE, 20, "i"),
        (snapshot_pod(THREE), CORE, 50, ""),
        (snapshot_pod(THREE, i=FULL), CORE, 50, "c0"),
        (snapshot_pod(THREE, i=FULL), CORE, 30, ""),
        (snapshot_pod(THREE, i={CORE: CORES}), MEMORY, 2, "i"),
        (snapshot_pod(THREE, i={CORE: CORES}), CORE, 50, ""),
        (snapshot_pod(THREE, i=FULL, c0=HALF), CORE, 50, "c0"),
        (snapshot_pod(THREE, i=FULL, c0=HALF), MEMORY, 4, ""),
        (snapshot_pod(THREE, i=FULL, c0=FULL), MEMORY, 4, "c1"),
        (snapshot_pod(NO_MEMORY, c0={CORE: CORES}), CORE, 50, "c1"),
    ],
)
def test_the_target_is_the_pods_first_container_that_lacks_something_if_it_requests_this(
    pod: SnapshotPod, resource: Resource, size: int, name: str
) -> None:
    found = ""
    with suppress(ResolutionError):
        found = _resolve(snapshot_of(pod), request=TargetRequest(resource, size)).container.name
    assert found == name


# --- pods that only the kubelet knows -----------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "memory", "demand"),
    [
        ([50], [4], Demand(50, 4)),
        ([50], [], Demand(50, 1)),
        ([100, 100], [], Demand(200, 0)),
        ([50, 50], [], Demand(100, 2, 2)),
        ([50, 50], [4, 4], Demand(100, 8, 2)),
        ([], [4, 4], Demand(2, 8, 2)),
        ([], [4, 3], Demand(200, 7)),
    ],
)
def test_an_unknown_amount_of_a_share_is_assumed_to_be_one_unit_of_each_card(
    cores: list[int], memory: list[int], demand: Demand
) -> None:
    core_ids, memory_ids = _ids(*cores), _ids(*memory)
    held = {CORE: core_ids} if cores else {}
    request = TargetRequest(MEMORY, len(memory_ids), named=memory_ids)
    assert assumed_container("c0", held, request).demand == demand


def _ids(*cards: int) -> frozenset[str]:
    return frozenset(
        f"GPU-{card}::{number}" for card, count in enumerate(cards) for number in range(count)
    )


def test_cores_of_several_cards_without_memory_lack_it_unless_they_are_whole_cards() -> None:
    divided = _nameless("static", c0={CORE: _ids(50, 50)}, c1={CORE: _ids(10)})
    whole = _nameless("static", c0={CORE: _ids(100)}, c1={CORE: _ids(10)})
    targets = [
        _resolve(snapshot_of(each), request=TargetRequest(MEMORY, 4)).container.name
        for each in (divided, whole)
    ]
    assert targets == ["c0", "c1"]


def test_a_refusal_names_waiting_containers_and_their_requests() -> None:
    pods = [view(f"p{index}", container("c0", 10 + index, 1)) for index in range(7)]
    snapshot = snapshot_of(*map(snapshot_pod, pods), C_FULL)
    with pytest.raises(ResolutionError) as caught:
        _resolve(snapshot)
    assert str(caught.value) == (
        "no container waits for 50 cores; waiting: "
        "default/p0 container c0 (cores 10, memory 1); default/p1 container c0 (cores 11, "
        "memory 1); default/p2 container c0 (cores 12, memory 1); default/p3 container c0 "
        "(cores 13, memory 1); default/p4 container c0 (cores 14, memory 1) and 2 more"
    )
    with pytest.raises(ResolutionError, match=r"^no container waits for 1 core; waiting: none$"):
        _resolve(snapshot_of(), request=TargetRequest(CORE, 1))
