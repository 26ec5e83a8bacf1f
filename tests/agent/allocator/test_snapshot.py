"""The allocation snapshot from ``List``, checkpoint and our own assignments (R1, R2, R7)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.interfaces import (
    Checkpoint,
    Containers,
    HeldSlots,
    ListedPod,
)
from agent.allocator.snapshot import AllocationSnapshot, KubeletHistory
from agent.allocator.snapshot_builder import SnapshotContext, build_snapshot
from agent.allocator.snapshot_pod import StablePods, find_stable
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
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
    patient,
    pod_id,
    pods_of,
    record_of,
    recorded,
    view,
    written,
)

A, B, C = (ids("GPU-0", range(start, start + 10)) for start in (0, 10, 20))
POD = view("p", container("i", 10, 1, kind=INIT), container("c0", 10, 1))
UNSEEN, HAS_B, HAS_C = (listed("p", c0=held) for held in (None, {CORE: B}, {CORE: C}))
ME = pod_id("p")
GUEST = view("q", container("c0", 10, 1))
FILE = written(p={"i": {CORE: A}, "c0": {CORE: B}})
INIT_ONLY = written(p={"i": {CORE: A}})
BOTH = {"i": A, "c0": B}


def _assigned(
    name: str, held: frozenset[str], *, pod: str = "p", allocated: bool = True
) -> CurrentPod:
    assignment = Assignment(name, CORE, held, Evidence.WITNESS, allocated)
    return CurrentPod(pod_id(pod), f"u-{pod}", assignments=(assignment,))


def _read(
    entries: Sequence[ListedPod] | None = (UNSEEN,),
    file: Checkpoint | None = None,
    *services: CurrentPod,
    views: Sequence[PodInfo] = (POD,),
    departed: Sequence[PodInfo] = (),
    **seen: Any,
) -> AllocationSnapshot:
    return build_snapshot(
        checkpoint=file or Checkpoint(),
        listed=entries,
        served=services,
        known=pods_of(*views, departed=departed),
        context=_context(**seen),
    )


def _context(
    *,
    listed: Any = (),
    identified: Any = (),
    freed: Any = (),
    ended: Any = (),
    last_pod: Any = None,
    passed: Any = (),
    **rest: Any,
) -> SnapshotContext:
    history = KubeletHistory(
        frozenset(listed), frozenset(identified), frozenset(freed), frozenset(ended)
    )
    return SnapshotContext(history, last_pod=last_pod, finished=frozenset(passed), **rest)


def _held(record: AllocationSnapshot) -> dict[str, frozenset[str]]:
    """The core places of all containers."""
    return {
        name: held_ids[CORE]
        for pod in record.pods
        for name, held_ids in pod.held.items()
        if CORE in held_ids
    }


@cases(
    "entries, file, services, held",
    {
        "nothing is known": ([UNSEEN], None, [], {}),
        "List shows it": ([HAS_B], None, [], {"c0": B}),
        "an init container is only in the file (K4)": ([UNSEEN], INIT_ONLY, [], {"i": A}),
        "List and file together": ([HAS_B], FILE, [], BOTH),
        "a pod that List does not show is in the file": ([], FILE, [], BOTH),
        "an init container was answered": ([UNSEEN], None, [_assigned("i", A)], {"i": A}),
        "the container before is in the file": ([UNSEEN], INIT_ONLY, [_assigned("c0", B)], BOTH),
        "what List shows goes before our answer": ([HAS_B], None, [_assigned("c0", C)], {"c0": B}),
        "a promise is no answer": ([UNSEEN], None, [_assigned("c0", A, allocated=False)], {}),
        "answered, and listed no more": ([], None, [_assigned("c0", B)], {}),
        "no List: the file": (None, FILE, [], BOTH),
        "no List: the file and our answers": (None, INIT_ONLY, [_assigned("c0", B)], BOTH),
        "no List, no file: our answers": (None, None, [_assigned("c0", B)], {"c0": B}),
        "no List, no file, no answer": (None, None, [], {}),
    },
)
def test_what_a_pod_holds_is_known_from_three_sources(
    entries: list[ListedPod] | None,
    file: Checkpoint | None,
    services: list[CurrentPod],
    held: dict[str, frozenset[str]],
) -> None:
    assert _held(_read(entries, file, *services)) == held


def test_without_list_pods_are_known_from_the_api_and_two_of_them_by_assignments() -> None:
    """K33: the file may be one container old; nobody else knows what that pod was given."""
    services = _assigned("c0", B, pod="q"), _assigned("c0", A)
    record = _read(None, None, *services, views=[POD, GUEST, view("new")])
    assert [(each.id.name, each.slots(CORE)) for each in record.pods] == [
        ("q", B),
        ("p", A),
        ("new", frozenset()),
    ]
    assert not record.listing


@cases(
    "rejected",
    {"List showed that": {"ended": {ME}}, "it was passed over (K1)": {"passed": {ME}}},
)
def test_without_list_what_a_rejected_pod_was_given_is_free(rejected: dict[str, Any]) -> None:
    """``List`` no longer showed it, or another was the target while it lacked something (K8)."""
    record = _read(None, None, _assigned("c0", B, pod="q"), _assigned("c0", A), **rejected)
    assert _held(record) == {"c0": B}


@pytest.mark.parametrize(
    ("views", "pod"),
    [
        ([replace(POD, id=pod_id("p", "mirror"), runtime_uid="u-p")], pod_id("p", "mirror")),
        ([], ME),
    ],
    ids=["its mirror has another UID (K34)", "nobody but the kubelet knows it"],
)
def test_a_static_pod_is_one_pod_by_the_uid_that_the_file_has(
    views: list[PodInfo], pod: object
) -> None:
    record = _read([HAS_B], FILE, views=views)
    assert _held(record) == BOTH
    assert [(each.id, each.uid) for each in record.pods] == [(pod, "u-p")]


# --- free again -------------------------------------------------------------------------

ALL_B: HeldSlots = {CORE: B, MEMORY: B}
ALL = written(p={"i": {CORE: A, MEMORY: A}, "c0": ALL_B})
OFFERED = {CORE: {"GPU-0::5"}}
ENDED = [replace(POD, terminal=True)]
GONE: dict[str, Any] = {"views": [], "departed": [POD]}
UNKNOWN_OFFERED: dict[str, Any] = {"views": [], "offered": {CORE: A | B}}
WITH_GUEST: dict[str, Any] = {"views": [POD, GUEST]}
HAS_ALL, GUEST_HAS_B = listed("p", c0=ALL_B), listed("q", c0={CORE: B})


@cases(
    "entries, file, given, held",
    {
        "this kubelet has not come to it: it holds (K31)": ([], FILE, {}, BOTH),
        "listed before, and no more": ([], FILE, {"listed": {"u-p"}}, {}),
        "offered before, and still in the file (K29)": ([], FILE, {"freed": {"u-p"}}, {}),
        "List shows its container without what is written": ([UNSEEN], FILE, {}, {}),
        "List shows its container with something else": ([HAS_C], FILE, {}, {"c0": C}),
        "not listed, and something of it is offered": ([], FILE, {"offered": OFFERED}, {}),
        "the same of the other resource": ([], FILE, {"offered": {MEMORY: {"GPU-0::5"}}}, BOTH),
        "asking: offered what it hands on (K7)": (
            [],
            FILE,
            {"offered": OFFERED, "last_pod": ME},
            BOTH,
        ),
        "not listed, and another has its places": ([GUEST_HAS_B], FILE, WITH_GUEST, {"c0": B}),
        "not listed, and ended": ([], FILE, {"views": ENDED}, {}),
        "not listed, and left the API": ([], FILE, GONE, {}),
        "nobody has told of it, and all pods are known": ([], FILE, {"views": []}, {}),
        "not all pods are known": ([], FILE, {"views": [], "synced": False}, BOTH),
        "no List, and left the API: it may run on (K20)": (None, FILE, GONE, BOTH),
        "no List, and ended": (None, FILE, {"views": ENDED}, {}),
        "no List: that it was listed says nothing": (None, FILE, {"listed": {"u-p"}}, BOTH),
        "no List: it may run on, and be offered (K15)": (None, FILE, UNKNOWN_OFFERED, BOTH),
        "no List, and it had ended while there was one": (None, FILE, {"ended": {ME}}, {}),
        "no List, and rejected while it lacked something": (None, INIT_ONLY, {"passed": {ME}}, {}),
        "no List, passed, and it has all it asks for": (None, ALL, {"passed": {ME}}, BOTH),
        "an old List keeps it though it has ended (K8)": (
            [UNSEEN],
            INIT_ONLY,
            {"views": ENDED},
            {},
        ),
        "the same of one that was rejected": ([UNSEEN], INIT_ONLY, {"passed": {ME}}, {}),
        "passed, and it has all it asks for": ([HAS_ALL], ALL, {"passed": {ME}}, BOTH),
    },
)
def test_a_pods_slots_are_free_once_the_kubelet_frees_them(
    entries: list[ListedPod] | None,
    file: Checkpoint,
    given: dict[str, Any],
    held: Mapping[str, frozenset[str]],
) -> None:
    record = _read(entries, file, **given)
    assert _held(record) == held
    assert record.held[CORE] == frozenset().union(*held.values())
    assert all(each.held or each.ended for each in record.pods)


# --- who lacks what -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "lacks"),
    [
        ({}, True),
        ({"i": {CORE: A, MEMORY: A}}, True),
        ({"i": {CORE: A, MEMORY: A}, "c0": {CORE: B}}, True),
        ({"c0": ALL_B}, True),
        ({"i": {CORE: A, MEMORY: A}, "c0": ALL_B}, False),
    ],
)
def test_a_pod_lacks_something_until_every_container_has_all_it_asks_for(
    held: Containers, lacks: bool
) -> None:
    assert recorded(POD, **held).lacks is lacks


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
def test_a_pod_that_only_the_kubelet_knows_lacks_what_a_share_of_it_does_not_show(
    shown: Containers, lacks: bool
) -> None:
    (pod,) = _read([listed("p", c0=shown.get("c0"), c1=shown.get("c1"))], views=[]).pods
    assert pod.lacks is lacks


# --- who is in the way ---------------------------------------------------------------------


def test_what_another_holds_is_out_of_reach_and_what_the_pods_init_left_over_is_not() -> None:
    """K7, K15."""
    record = record_of(recorded(POD, i={CORE: A}), recorded(GUEST, c0={CORE: B}))
    mine, other = ContainerRef(POD.id, "c0"), ContainerRef(GUEST.id, "c0")
    assert record.taken(mine, CORE, A | B) == B
    assert record.taken(other, CORE, A | B) == A
    assert record.taken(mine, MEMORY, A | B) == frozenset()
    assert record.taken(ContainerRef(pod_id("new"), "c0"), CORE, A | B | C) == A | B


def test_what_a_later_container_has_taken_on_is_left_over_no_more() -> None:
    some = frozenset(sorted(A)[:4])
    record = record_of(recorded(POD, i={CORE: A}, c0={CORE: some | B}))
    assert record.reusable(POD.id, CORE) == A - some
    assert record.taken(ContainerRef(POD.id, "another"), CORE, A | B) == some | B


def test_reused_slots_are_found_at_both_containers() -> None:
    record = record_of(recorded(POD, i={CORE: A}, c0={CORE: A}), recorded(GUEST, c0={CORE: B}))
    assert record.find(CORE, A) == [ContainerRef(POD.id, "i"), ContainerRef(POD.id, "c0")]
    assert record.find(CORE, A | B) == []


def test_slots_of_unlisted_pods_are_uncertain() -> None:
    """Nobody has told whether they have ended; without ``List`` nobody could."""
    entry = listed("q", c0={CORE: C})
    assert _read([entry], FILE, views=[POD, GUEST]).uncertain(CORE) == A | B
    assert _read(None, FILE).uncertain(CORE) == frozenset()


EVERY = ids("GPU-0", range(40))


@cases(
    "offered, others, withheld",
    {
        "none of it is offered": (EVERY - A, [], B),
        "all of it is offered": (EVERY, [], frozenset()),
        "some of it is offered": (EVERY - (A - {"GPU-0::0"}), [], frozenset()),
        "another holds it by now": (EVERY - A, [listed("q", c0={MEMORY: B})], frozenset()),
    },
)
def test_what_a_pod_that_is_over_had_is_withheld_as_a_whole_or_not_at_all(
    offered: frozenset[str], others: list[ListedPod], withheld: frozenset[str]
) -> None:
    """K31, R7."""
    file = written(p={"c0": {CORE: A, MEMORY: B}})
    record = _read(others, file, views=[POD, GUEST], listed={"u-p"})
    assert record.withheld(CORE, offered, MEMORY) == withheld


def test_a_container_that_the_kubelet_refused_proves_nothing_about_earlier_ones() -> None:
    """K21: it was answered, and never counted; what the pod had before is counted for a while."""
    cores = [ids("GPU-0", range(at, at + 10)) for at in (0, 10)]
    blocks = [ids("GPU-0", [at]) for at in (0, 1)]
    held = {f"c{at}": {CORE: cores[at], MEMORY: blocks[at]} for at in (0, 1)}
    record = _read([], written(p=held), listed={"u-p"})
    assert record.withheld(MEMORY, EVERY - blocks[0], CORE) == cores[0]


def test_what_a_pod_that_was_rejected_half_served_had_is_withheld() -> None:
    """K21: the file never has it; another pod has been served since."""
    record = _read(
        [listed("q", c0=None)],
        None,
        _assigned("c0", B, pod="q"),
        _assigned("c0", A),
        views=[POD, GUEST],
    )
    assert record.held[CORE] == B
    assert record.withheld(MEMORY, EVERY, CORE) == A


def test_a_container_without_this_resource_is_ignored_in_its_pod() -> None:
    held = {"c0": {CORE: A, MEMORY: B}, "c1": {MEMORY: C}}
    record = _read([], written(p=held), listed={"u-p"})
    assert record.withheld(CORE, EVERY, MEMORY) == frozenset()
    assert record.withheld(CORE, EVERY - A, MEMORY) == B | C


# --- settled pods: taken over from look to look ------------------------------------------------

NAMES = "pqr"
VIEWS = {
    name: view(name, container("i", 10, 1, kind=INIT), container("c0", 10, 1)) for name in NAMES
}
DEVICE_IDS = {
    name: {CORE: ids("GPU-0", range(10 * at, 10 * at + 10)), MEMORY: ids("GPU-0", [at])}
    for at, name in enumerate(NAMES)
}


@st.composite
def _looks(draw: st.DrawFn) -> dict[str, Any]:
    """What is seen at one moment; entries and files that say the same are the same objects."""
    entries: list[ListedPod] = []
    file: dict[str, Containers] = {}
    views: list[PodInfo] = []
    for name in NAMES:
        mine = DEVICE_IDS[name]
        shown: HeldSlots | None = draw(st.sampled_from([None, {}, {CORE: mine[CORE]}, mine]))
        entries += [] if shown is None else [_entry(name, *sorted(shown))]
        if draw(st.booleans()):
            file[f"u-{name}"] = _file_of(name, draw(st.booleans()), draw(st.booleans()))
        views.append(_view_of(name, terminal=draw(st.booleans())))
    twice = draw(st.booleans())
    entries += entries[:1] if twice else []
    name = draw(st.sampled_from(NAMES))
    service = _assigned("c0", DEVICE_IDS[name][CORE], pod=name)
    return {
        "listed": entries,
        "checkpoint": Checkpoint(file),
        "served": draw(st.sampled_from([(), (service,)])),
        "pods": pods_of(*draw(st.sampled_from([views, views[1:]]))),
    }


@cache
def _entry(name: str, *resources: Resource) -> ListedPod:
    return listed(name, c0={each: DEVICE_IDS[name][each] for each in resources} or None)


@cache
def _file_of(name: str, init: bool, right: bool) -> Containers:
    held = {"c0": DEVICE_IDS[name] if right else DEVICE_IDS["p"]}
    return {**held, "i": DEVICE_IDS[name]} if init else held


@cache
def _view_of(name: str, *, terminal: bool) -> PodInfo:
    return replace(VIEWS[name], terminal=terminal)


def _build(look: dict[str, Any], stable: StablePods | None = None) -> AllocationSnapshot:
    sources = {"known" if name == "pods" else name: each for name, each in look.items()}
    return build_snapshot(**sources, context=SnapshotContext(), stable=stable)


@patient
@given(st.lists(_looks(), min_size=2, max_size=5))
def test_skipping_stable_pods_changes_no_result(looks: list[dict[str, Any]]) -> None:
    record = AllocationSnapshot()
    for look in looks:
        settled = find_stable(record.stable, record.listed_changing, **look)
        record = _build(look, stable=settled)
        afresh = _build(look)
        assert sorted(map(repr, record.pods)) == sorted(map(repr, afresh.pods))
        assert record.signatures == afresh.signatures
        assert not any(settled.by_uid.keys() & {each.uid} for each in look["served"])
        for each in Resource:
            assert record.held[each] == afresh.held[each]
        for name in NAMES:
            assert record.lists(VIEWS[name].id.key) == afresh.lists(VIEWS[name].id.key)
            assert record.find(CORE, DEVICE_IDS[name][CORE]) == afresh.find(
                CORE, DEVICE_IDS[name][CORE]
            )
            assert record.pod_by_uid(f"u-{name}") == afresh.pod_by_uid(f"u-{name}")


def test_an_unchanging_pod_is_stable() -> None:
    look: dict[str, Any] = {
        "listed": [_entry("p", CORE, MEMORY)],
        "checkpoint": Checkpoint({"u-p": _file_of("p", init=True, right=True)}),
        "served": (),
        "pods": pods_of(VIEWS["p"]),
    }
    record = _build(look)
    settled = find_stable(record.stable, record.listed_changing, **look)
    assert tuple(settled.pods) == record.pods
    assert find_stable(settled, (), **look) is settled
