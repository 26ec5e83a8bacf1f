"""The allocation snapshot from ``List``, checkpoint and our own assignments (R1, R2, R7)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.interfaces import Checkpoint, Containers, HeldSlots, ListedPod
from agent.allocator.snapshot import AllocationSnapshot, KubeletHistory
from agent.allocator.snapshot_builder import SnapshotContext, build_snapshot
from agent.allocator.snapshot_pod import StablePods, find_stable
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    cases,
    checkpoint_of,
    container,
    ids,
    listed,
    patient,
    pod_id,
    pods_of,
    view,
)

A, B, C = (ids("GPU-0", range(start, start + 10)) for start in (0, 10, 20))
POD = view("p", container("i", 10, 1, kind=INIT), container("c0", 10, 1))
UNSEEN, HAS_B, HAS_C = (listed("p", c0=held) for held in (None, {CORE: B}, {CORE: C}))
ME = pod_id("p")
GUEST = view("q", container("c0", 10, 1))
SAVED = checkpoint_of(p={"i": {CORE: A}, "c0": {CORE: B}})
INIT_ONLY = checkpoint_of(p={"i": {CORE: A}})
BOTH = {"i": A, "c0": B}


def _assigned(
    name: str, held: frozenset[str], *, pod: str = "p", allocated: bool = True
) -> CurrentPod:
    assignment = Assignment(name, CORE, held, Evidence.WITNESS, allocated)
    return CurrentPod(pod_id(pod), f"u-{pod}", assignments=(assignment,))


ASSIGNED, RESERVED = _assigned("c0", B), _assigned("c0", A, allocated=False)


def _build_from(
    entries: Sequence[ListedPod] | None = (UNSEEN,),
    checkpoint: Checkpoint | None = None,
    *services: CurrentPod,
    views: Sequence[PodInfo] = (POD,),
    departed: Sequence[PodInfo] = (),
    **seen: Any,
) -> AllocationSnapshot:
    return build_snapshot(
        checkpoint=checkpoint or Checkpoint(),
        listed=entries,
        served=services,
        known=pods_of(*views, departed=departed),
        context=_context(**seen),
    )


def _context(*, passed: Any = (), **seen: Any) -> SnapshotContext:
    sets = ("listed", "identified", "freed", "ended")
    history = KubeletHistory(*(frozenset(seen.pop(each, ())) for each in sets))
    return SnapshotContext(history, finished=frozenset(passed), **seen)


def _held(snapshot: AllocationSnapshot) -> dict[str, frozenset[str]]:
    return {
        name: held_ids[CORE]
        for pod in snapshot.pods
        for name, held_ids in pod.held.items()
        if CORE in held_ids
    }


@cases(
    "entries, checkpoint, services, held",
    {
        "nothing is known": ([UNSEEN], None, [], {}),
        "List shows it": ([HAS_B], None, [], {"c0": B}),
        "an init container is only in the checkpoint (K4)": ([UNSEEN], INIT_ONLY, [], {"i": A}),
        "List and checkpoint together": ([HAS_B], SAVED, [], BOTH),
        "a pod that List does not show is in the checkpoint": ([], SAVED, [], BOTH),
        "slots were assigned to an init container": ([UNSEEN], None, [_assigned("i", A)], {"i": A}),
        "the one before is in the checkpoint": ([UNSEEN], INIT_ONLY, [ASSIGNED], BOTH),
        "slots in List come before assigned ones": ([HAS_B], None, [_assigned("c0", C)], {"c0": B}),
        "a reservation is no allocation": ([UNSEEN], None, [RESERVED], {}),
        "assigned, and no longer listed": ([], None, [ASSIGNED], {}),
        "no List: the checkpoint": (None, SAVED, [], BOTH),
        "no List: the checkpoint and our assignments": (None, INIT_ONLY, [ASSIGNED], BOTH),
        "neither: our assignments": (None, None, [ASSIGNED], {"c0": B}),
        "nor any assignment": (None, None, [], {}),
    },
)
def test_slots_of_a_pod_are_known_from_three_sources(
    entries: list[ListedPod] | None,
    checkpoint: Checkpoint | None,
    services: list[CurrentPod],
    held: dict[str, frozenset[str]],
) -> None:
    assert _held(_build_from(entries, checkpoint, *services)) == held


ALL_B: HeldSlots = {CORE: B, MEMORY: B}
ALL = checkpoint_of(p={"i": {CORE: A, MEMORY: A}, "c0": ALL_B})
OFFERED, OTHER_OFFERED = {CORE: {"GPU-0::5"}}, {MEMORY: {"GPU-0::5"}}
REUSABLE_OFFERED: dict[str, Any] = {"offered": OFFERED, "last_pod": ME}
ENDED = [replace(POD, terminal=True)]
DEPARTED: dict[str, Any] = {"views": [], "departed": [POD]}
UNKNOWN_OFFERED: dict[str, Any] = {"views": [], "offered": {CORE: A | B}}
WITH_GUEST: dict[str, Any] = {"views": [POD, GUEST]}
HAS_ALL, GUEST_HAS_B = listed("p", c0=ALL_B), listed("q", c0={CORE: B})


@cases(
    "entries, checkpoint, given, held",
    {
        "this kubelet has not admitted it: it holds (K31)": ([], SAVED, {}, BOTH),
        "listed before, and no longer": ([], SAVED, {"listed": {"u-p"}}, {}),
        "offered before, and still written (K29)": ([], SAVED, {"freed": {"u-p"}}, {}),
        "List shows its container without these slots": ([UNSEEN], SAVED, {}, {}),
        "List shows its container with other slots": ([HAS_C], SAVED, {}, {"c0": C}),
        "not listed, and something of it is offered": ([], SAVED, {"offered": OFFERED}, {}),
        "the same of the other resource": ([], SAVED, {"offered": OTHER_OFFERED}, BOTH),
        "reusable slots of the current pod (K7)": ([], SAVED, REUSABLE_OFFERED, BOTH),
        "not listed, and another has its slots": ([GUEST_HAS_B], SAVED, WITH_GUEST, {"c0": B}),
        "not listed, and ended": ([], SAVED, {"views": ENDED}, {}),
        "not listed, and left the API": ([], SAVED, DEPARTED, {}),
        "no source has it, and all pods are known": ([], SAVED, {"views": []}, {}),
        "not all pods are known": ([], SAVED, {"views": [], "synced": False}, BOTH),
        "no List, and left the API: it may run on (K20)": (None, SAVED, DEPARTED, BOTH),
        "no List, and ended": (None, SAVED, {"views": ENDED}, {}),
        "no List: that it was listed does not count": (None, SAVED, {"listed": {"u-p"}}, BOTH),
        "no List: it may run on, and be offered (K15)": (None, SAVED, UNKNOWN_OFFERED, BOTH),
        "no List, and it had ended while there was one": (None, SAVED, {"ended": {ME}}, {}),
        "no List, and rejected while it lacked something": (None, INIT_ONLY, {"passed": {ME}}, {}),
        "no List, another began, and it has all it requests": (None, ALL, {"passed": {ME}}, BOTH),
        "an old List shows it, and it has ended (K8)": ([UNSEEN], INIT_ONLY, {"views": ENDED}, {}),
        "the same of one that was rejected": ([UNSEEN], INIT_ONLY, {"passed": {ME}}, {}),
        "another began, and it has all it requests": ([HAS_ALL], ALL, {"passed": {ME}}, BOTH),
    },
)
def test_a_pods_slots_are_free_once_the_kubelet_frees_them(
    entries: list[ListedPod] | None,
    checkpoint: Checkpoint,
    given: dict[str, Any],
    held: Mapping[str, frozenset[str]],
) -> None:
    snapshot = _build_from(entries, checkpoint, **given)
    assert _held(snapshot) == held
    assert snapshot.held[CORE] == frozenset().union(*held.values())
    assert all(each.held or each.ended for each in snapshot.pods)


@pytest.mark.parametrize(
    ("shown", "lacks"),
    [
        ({}, True),
        ({"c0": ALL_B}, True),
        ({"c0": ALL_B, "c1": {CORE: A}}, True),
        ({"c0": ALL_B, "c1": {MEMORY: A}}, True),
        ({"c0": ALL_B, "c1": ALL_B}, False),
        ({"c0": ALL_B, "c1": {CORE: ids("GPU-0", range(100))}}, False),
    ],
    ids=["nothing", "one container", "its cores", "its memory", "all", "whole cards"],
)
def test_a_pod_that_only_the_kubelet_knows_lacks_the_other_resource_of_its_shares(
    shown: Containers, lacks: bool
) -> None:
    (pod,) = _build_from([listed("p", c0=shown.get("c0"), c1=shown.get("c1"))], views=[]).pods
    assert pod.lacks is lacks


# --- slots of other pods ----------------------------------------------------------------


def test_slots_of_unlisted_pods_are_uncertain() -> None:
    """They may have ended; without ``List`` all would be uncertain."""
    entry = listed("q", c0={CORE: C})
    assert _build_from([entry], SAVED, views=[POD, GUEST]).uncertain(CORE) == A | B
    assert _build_from(None, SAVED).uncertain(CORE) == frozenset()


EVERY = ids("GPU-0", range(40))


@cases(
    "offered, others, withheld",
    {
        "none of it is offered": (EVERY - A, [], B | C),
        "all of it is offered": (EVERY, [], frozenset()),
        "some of it is offered": (EVERY - (A - {"GPU-0::0"}), [], frozenset()),
        "another holds some of it now": (EVERY - A, [listed("q", c0={MEMORY: B})], C),
    },
)
def test_slots_of_an_ended_pod_are_withheld_as_a_whole_or_not_at_all(
    offered: frozenset[str], others: list[ListedPod], withheld: frozenset[str]
) -> None:
    """K31, R7; a container without this resource neither proves nor disproves it."""
    checkpoint = checkpoint_of(p={"c0": {CORE: A, MEMORY: B}, "c1": {MEMORY: C}})
    snapshot = _build_from(others, checkpoint, views=[POD, GUEST], listed={"u-p"})
    assert snapshot.withheld(CORE, offered, MEMORY) == withheld


# --- stable pods ------------------------------------------------------------------------

NAMES = "pqr"
VIEWS = {
    name: view(name, container("i", 10, 1, kind=INIT), container("c0", 10, 1)) for name in NAMES
}
DEVICE_IDS = {
    name: {CORE: ids("GPU-0", range(10 * at, 10 * at + 10)), MEMORY: ids("GPU-0", [at])}
    for at, name in enumerate(NAMES)
}


@st.composite
def _observations(draw: st.DrawFn) -> dict[str, Any]:
    """Draw one observation; equal entries are the same objects."""
    entries: list[ListedPod] = []
    checkpoint: dict[str, Containers] = {}
    views: list[PodInfo] = []
    for name in NAMES:
        mine = DEVICE_IDS[name]
        shown: HeldSlots | None = draw(st.sampled_from([None, {}, {CORE: mine[CORE]}, mine]))
        entries += [] if shown is None else [_entry(name, *sorted(shown))]
        if draw(st.booleans()):
            checkpoint[f"u-{name}"] = _checkpoint_of(name, draw(st.booleans()), draw(st.booleans()))
        views.append(_view_of(name, terminal=draw(st.booleans())))
    twice = draw(st.booleans())
    entries += entries[:1] if twice else []
    name = draw(st.sampled_from(NAMES))
    service = _assigned("c0", DEVICE_IDS[name][CORE], pod=name)
    return {
        "listed": entries,
        "checkpoint": Checkpoint(checkpoint),
        "served": draw(st.sampled_from([(), (service,)])),
        "pods": pods_of(*draw(st.sampled_from([views, views[1:]]))),
    }


@cache
def _entry(name: str, *resources: Resource) -> ListedPod:
    return listed(name, c0={each: DEVICE_IDS[name][each] for each in resources} or None)


@cache
def _checkpoint_of(name: str, init: bool, right: bool) -> Containers:
    held = {"c0": DEVICE_IDS[name] if right else DEVICE_IDS["p"]}
    return {**held, "i": DEVICE_IDS[name]} if init else held


@cache
def _view_of(name: str, *, terminal: bool) -> PodInfo:
    return replace(VIEWS[name], terminal=terminal)


def _build(observation: dict[str, Any], stable: StablePods | None = None) -> AllocationSnapshot:
    sources = {"known" if name == "pods" else name: each for name, each in observation.items()}
    return build_snapshot(**sources, context=SnapshotContext(), stable=stable)


@patient
@given(st.lists(_observations(), min_size=2, max_size=5))
def test_skipping_stable_pods_changes_no_result(observations: list[dict[str, Any]]) -> None:
    snapshot = AllocationSnapshot()
    for observation in observations:
        stable = find_stable(snapshot.stable, snapshot.listed_changing, **observation)
        snapshot = _build(observation, stable=stable)
        afresh = _build(observation)
        assert sorted(map(repr, snapshot.pods)) == sorted(map(repr, afresh.pods))
        assert snapshot.signatures == afresh.signatures
        assert not any(stable.by_uid.keys() & {each.uid} for each in observation["served"])
        for each in Resource:
            assert snapshot.held[each] == afresh.held[each]
        for name in NAMES:
            assert snapshot.lists(VIEWS[name].id.key) == afresh.lists(VIEWS[name].id.key)
            assert snapshot.find(CORE, DEVICE_IDS[name][CORE]) == afresh.find(
                CORE, DEVICE_IDS[name][CORE]
            )
            assert snapshot.pod_by_uid(f"u-{name}") == afresh.pod_by_uid(f"u-{name}")


def test_an_unchanging_pod_is_stable() -> None:
    observation: dict[str, Any] = {
        "listed": [_entry("p", CORE, MEMORY)],
        "checkpoint": Checkpoint({"u-p": _checkpoint_of("p", init=True, right=True)}),
        "served": (),
        "pods": pods_of(VIEWS["p"]),
    }
    snapshot = _build(observation)
    stable = find_stable(snapshot.stable, snapshot.listed_changing, **observation)
    assert tuple(stable.pods) == snapshot.pods
    assert find_stable(stable, (), **observation) is stable
