"""Who holds what, from ``List``, checkpoint and our own answers (R1, R2, R7)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.in_service import Answered, InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef, Containers, Places
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import ListedPod
from agent.allocator.record import Record, Seen, read_record
from agent.allocator.recorded_pod import settle
from contract.allocation import Evidence
from contract.resource import Resource
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
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
SEVERAL = view("p", container("c0", 10, 1), container("c1", 10, 1))
UNSEEN = listed("p", c0=None)
ME = pod_id("p")
GUEST = view("q", container("c0", 10, 1))


def _answer(name: str, held: frozenset[str], *, allocated: bool = True) -> Answered:
    return Answered(name, CORE, held, Evidence.WITNESS, allocated)


def _service(*answers: Answered, pod: PodId = ME, uid: str = "u-p") -> InService:
    return InService("life", pod, uid, answers=answers)


def _read(
    entries: Sequence[ListedPod] | None = (UNSEEN,),
    file: Checkpoint | None = None,
    *services: InService,
    views: Sequence[PodView] = (POD,),
    departed: Sequence[PodView] = (),
    seen: Seen | None = None,
) -> Record:
    return read_record(
        written=file or Checkpoint(),
        listed=entries,
        services=services,
        pods=pods_of(*views, departed=departed),
        seen=seen or Seen(),
    )


def _held(record: Record, pod: PodId = ME) -> dict[str, frozenset[str]]:
    """The core places of the containers of a pod."""
    return {name: places[CORE] for name, places in record.containers(pod).items() if CORE in places}


# --- the sources ------------------------------------------------------------------------

FILE = written(p={"i": {CORE: A}, "c0": {CORE: B}})


@pytest.mark.parametrize(
    ("entries", "file", "services", "held"),
    [
        ([UNSEEN], None, [], {}),
        ([listed("p", c0={CORE: B})], None, [], {"c0": B}),
        ([UNSEEN], written(p={"i": {CORE: A}}), [], {"i": A}),
        ([listed("p", c0={CORE: B})], FILE, [], {"i": A, "c0": B}),
        ([], FILE, [], {"i": A, "c0": B}),
        ([UNSEEN], None, [_service(_answer("i", A))], {"i": A}),
        ([UNSEEN], written(p={"i": {CORE: A}}), [_service(_answer("c0", B))], {"i": A, "c0": B}),
        ([listed("p", c0={CORE: B})], None, [_service(_answer("c0", C))], {"c0": B}),
        ([UNSEEN], None, [_service(_answer("c0", A, allocated=False))], {}),
        (None, FILE, [], {"i": A, "c0": B}),
        (None, written(p={"i": {CORE: A}}), [_service(_answer("c0", B))], {"i": A, "c0": B}),
        (None, None, [_service(_answer("c0", B))], {"c0": B}),
        (None, None, [], {}),
    ],
    ids=[
        "nothing is known",
        "List shows it",
        "an init container is only in the file (K4)",
        "List and file together",
        "a pod that List does not show is in the file",
        "an init container was answered, and the file is late",
        "a container was answered, and the one before is in the file",
        "what List shows goes before our answer",
        "a promise is no answer",
        "no List: the file",
        "no List: the file and our answers",
        "no List, no file: our answers",
        "no List, no file, no answer",
    ],
)
def test_what_a_pod_holds_is_known_from_three_sources(
    entries: list[ListedPod] | None,
    file: Checkpoint | None,
    services: list[InService],
    held: dict[str, frozenset[str]],
) -> None:
    assert _held(_read(entries, file, *services)) == held


def test_without_list_the_pod_served_before_is_known_though_the_file_is_one_container_old() -> None:
    """K33: nobody else knows what it was given."""
    record = _read(
        None,
        None,
        _service(_answer("c0", B), pod=GUEST.id, uid="u-q"),
        _service(_answer("c0", A)),
        views=[POD, GUEST],
    )
    assert (_held(record), _held(record, GUEST.id)) == ({"c0": A}, {"c0": B})


def test_without_list_pods_that_have_nothing_yet_are_known_from_the_api() -> None:
    record = _read(None, FILE, views=[POD, GUEST])
    assert {each.id for each in record.pods} == {POD.id, GUEST.id}
    assert not record.listing


def test_a_static_pod_is_one_pod_though_api_and_file_have_different_uids() -> None:
    """K34."""
    mirror = replace(POD, id=pod_id("p", "mirror"), runtime_uid="u-p")
    record = _read([listed("p", c0={CORE: B})], FILE, views=[mirror])
    assert _held(record, mirror.id) == {"i": A, "c0": B}
    assert [each.id for each in record.pods] == [mirror.id]


def test_a_pod_that_only_the_kubelet_knows_is_named_by_list_and_has_the_files_uid() -> None:
    record = _read([listed("p", c0={CORE: B})], FILE, views=[])
    assert _held(record, pod_id("p", "u-p")) == {"i": A, "c0": B}


# --- free again -------------------------------------------------------------------------

INIT_ONLY = written(p={"i": {CORE: A}})
ALL_B: Places = {CORE: B, MEMORY: B}
ALL = written(p={"i": {CORE: A, MEMORY: A}, "c0": ALL_B})


@pytest.mark.parametrize(
    ("entries", "file", "given", "held"),
    [
        ([], FILE, {}, {"i": A, "c0": B}),
        ([], FILE, {"seen": Seen(listed={"u-p"})}, {}),
        ([], FILE, {"seen": Seen(freed={"u-p"})}, {}),
        ([UNSEEN], FILE, {}, {}),
        ([listed("p", c0={CORE: C})], FILE, {}, {"c0": C}),
        ([], FILE, {"seen": Seen(offered={CORE: {"GPU-0::5"}})}, {}),
        ([], FILE, {"seen": Seen(offered={MEMORY: {"GPU-0::5"}})}, {"i": A, "c0": B}),
        (
            [],
            FILE,
            {"seen": Seen(offered={CORE: {"GPU-0::5"}}, asker=pod_id("p"))},
            {"i": A, "c0": B},
        ),
        ([listed("q", c0={CORE: B})], FILE, {"views": [POD, GUEST]}, {}),
        ([], FILE, {"views": [replace(POD, terminal=True)]}, {}),
        ([], FILE, {"views": [], "departed": [POD]}, {}),
        (None, FILE, {"views": [], "departed": [POD]}, {"i": A, "c0": B}),
        (None, FILE, {"views": [replace(POD, terminal=True)]}, {}),
        (None, FILE, {"seen": Seen(listed={"u-p"})}, {"i": A, "c0": B}),
        ([UNSEEN], INIT_ONLY, {"views": [replace(POD, terminal=True)]}, {}),
        ([UNSEEN], INIT_ONLY, {"seen": Seen(passed={ME})}, {}),
        ([listed("p", c0=ALL_B)], ALL, {"seen": Seen(passed={ME})}, {"i": A, "c0": B}),
    ],
    ids=[
        "this kubelet has not come to it: it holds (K31)",
        "listed before, and no more",
        "offered before, and still in the file (K29)",
        "List shows its container without what is written",
        "List shows its container with something else",
        "not listed, and something of it is offered",
        "not listed, and others of the other resource are offered",
        "not listed, and it is asking: what it handed on is offered to it (K7)",
        "not listed, and another has its places",
        "not listed, and ended",
        "not listed, and left the API",
        "no List, and left the API: it may run on (K20)",
        "no List, and ended",
        "no List: that it was listed says nothing",
        "an old List keeps it though it has ended (K8)",
        "an old List keeps it though it was rejected (K8)",
        "passed, and it has all it asks for",
    ],
)
def test_what_a_pod_had_is_free_once_the_kubelet_says_so(
    entries: list[ListedPod] | None,
    file: Checkpoint,
    given: dict[str, object],
    held: Mapping[str, frozenset[str]],
) -> None:
    record = _read(entries, file, **given)  # type: ignore[arg-type]
    assert _held(record) == held
    if entries is None or not any(each.key == GUEST.id.key for each in entries):
        assert record.held(CORE) == frozenset().union(*held.values())


@pytest.mark.parametrize(("synced", "held"), [(True, frozenset()), (False, A | B)])
def test_an_entry_of_a_pod_that_nobody_has_told_of_counts_until_all_pods_are_known(
    synced: bool, held: frozenset[str]
) -> None:
    assert _read([], FILE, views=[], seen=Seen(synced=synced)).held(CORE) == held


def test_our_answers_to_a_pod_that_is_listed_no_more_count_no_more() -> None:
    record = _read([], None, _service(_answer("c0", B)))
    assert record.held(CORE) == frozenset()


def test_a_pod_that_has_ended_asks_for_nothing() -> None:
    record = _read([], FILE, seen=Seen(listed={"u-p"}))
    assert [each.may_ask for each in record.pods] == [False]


# --- who lacks what -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "lacks"),
    [
        ({}, True),
        ({"i": {CORE: A, MEMORY: A}}, True),
        ({"i": {CORE: A, MEMORY: A}, "c0": {CORE: B}}, True),
        ({"c0": {CORE: B, MEMORY: B}}, True),
        ({"i": {CORE: A, MEMORY: A}, "c0": {CORE: B, MEMORY: B}}, False),
    ],
)
def test_a_pod_lacks_something_until_every_container_has_all_it_asks_for(
    held: Containers, lacks: bool
) -> None:
    assert recorded(POD, **held).lacks is lacks


@pytest.mark.parametrize(
    ("shown", "lacks"),
    [({}, True), ({"c0": {CORE: A}}, True), ({"c0": {CORE: A}, "c1": {CORE: B}}, False)],
)
def test_a_pod_that_only_the_kubelet_knows_lacks_what_a_listed_container_has_nothing_of(
    shown: Containers, lacks: bool
) -> None:
    entry = listed("p", c0=shown.get("c0"), c1=shown.get("c1"))
    (pod,) = _read([entry], views=[]).pods
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


def test_places_that_were_handed_on_are_found_at_both_containers() -> None:
    record = record_of(recorded(POD, i={CORE: A}, c0={CORE: A}), recorded(GUEST, c0={CORE: B}))
    assert record.find(CORE, A) == [ContainerRef(POD.id, "i"), ContainerRef(POD.id, "c0")]
    assert record.find(CORE, A | B) == []


def test_what_pods_hold_that_are_not_listed_is_doubtful() -> None:
    """Nobody has told whether they have ended; without ``List`` nobody could."""
    entry = listed("q", c0={CORE: C})
    assert _read([entry], FILE, views=[POD, GUEST]).doubtful(CORE) == A | B
    assert _read(None, FILE).doubtful(CORE) == frozenset()


# --- withheld: K31, R7 -----------------------------------------------------------------------

EVERY = ids("GPU-0", range(40))
FREED: Mapping[str, Places] = {"c0": {CORE: A, MEMORY: B}}


@pytest.mark.parametrize(
    ("offered", "withheld"),
    [(EVERY - A, B), (EVERY, frozenset()), (EVERY - (A - {"GPU-0::0"}), frozenset())],
    ids=["none of it is offered", "all of it is offered", "some of it is offered"],
)
def test_what_a_pod_that_is_over_had_is_withheld_as_a_whole_or_not_at_all(
    offered: frozenset[str], withheld: frozenset[str]
) -> None:
    record = _read([], written(p=FREED), views=[SEVERAL], seen=Seen(listed={"u-p"}))
    assert record.withheld(CORE, offered) == withheld


def test_a_container_that_the_kubelet_refused_says_nothing_of_those_before_it() -> None:
    """K21: it was answered, and never counted; what the pod had before is counted for a while."""
    cores = [ids("GPU-0", range(at, at + 10)) for at in (0, 10)]
    blocks = [ids("GPU-0", [at]) for at in (0, 1)]
    held = {f"c{at}": {CORE: cores[at], MEMORY: blocks[at]} for at in (0, 1)}
    record = _read([], written(p=held), views=[SEVERAL], seen=Seen(listed={"u-p"}))
    assert record.withheld(MEMORY, EVERY - blocks[0]) == cores[0]


def test_what_a_pod_that_was_rejected_half_served_had_is_withheld() -> None:
    """K21: the file never has it; another pod has been served since."""
    record = _read(
        [listed("q", c0=None)],
        None,
        _service(_answer("c0", B), pod=GUEST.id, uid="u-q"),
        _service(_answer("c0", A)),
        views=[POD, GUEST],
    )
    assert record.held(CORE) == B
    assert record.withheld(MEMORY, EVERY) == A


def test_a_container_without_any_of_what_is_asked_for_goes_with_its_pod() -> None:
    held = {"c0": {CORE: A, MEMORY: B}, "c1": {MEMORY: C}}
    record = _read([], written(p=held), views=[SEVERAL], seen=Seen(listed={"u-p"}))
    assert record.withheld(CORE, EVERY) == frozenset()
    assert record.withheld(CORE, EVERY - A) == B | C


def test_what_another_holds_by_now_is_not_withheld() -> None:
    file = written(p=FREED)
    entry = listed("q", c0={MEMORY: B})
    record = _read([entry], file, views=[SEVERAL, GUEST], seen=Seen(listed={"u-p"}))
    assert record.withheld(CORE, EVERY - A) == frozenset()


def test_without_list_what_is_written_of_a_pod_that_nobody_knows_is_held() -> None:
    """It may have been deleted by force and run on (K20); its places may be offered (K15)."""
    record = _read(None, FILE, views=[], seen=Seen(synced=True, offered={CORE: A | B}))
    assert record.held(CORE) == A | B
    assert not _read([], FILE, views=[], seen=Seen(synced=True)).held(CORE)


# --- settled pods: taken over from look to look ------------------------------------------------

NAMES = "pqr"
VIEWS = {
    name: view(name, container("i", 10, 1, kind=INIT), container("c0", 10, 1)) for name in NAMES
}
PLACES = {
    name: {CORE: ids("GPU-0", range(10 * at, 10 * at + 10)), MEMORY: ids("GPU-0", [at])}
    for at, name in enumerate(NAMES)
}


@st.composite
def _looks(draw: st.DrawFn) -> dict[str, Any]:
    """What is seen at one moment; entries and files that say the same are the same objects."""
    entries: list[ListedPod] = []
    file: dict[str, Containers] = {}
    views: list[PodView] = []
    for name in NAMES:
        mine = PLACES[name]
        shown: Places | None = draw(st.sampled_from([None, {}, {CORE: mine[CORE]}, mine]))
        entries += [] if shown is None else [_entry(name, *sorted(shown))]
        if draw(st.booleans()):
            file[f"u-{name}"] = _file_of(name, draw(st.booleans()), draw(st.booleans()))
        views.append(_view_of(name, terminal=draw(st.booleans())))
    twice = draw(st.booleans())
    entries += entries[:1] if twice else []
    name = draw(st.sampled_from(NAMES))
    service = _service(_answer("c0", PLACES[name][CORE]), pod=VIEWS[name].id, uid=f"u-{name}")
    return {
        "listed": entries,
        "written": Checkpoint(file),
        "services": draw(st.sampled_from([(), (service,)])),
        "pods": pods_of(*draw(st.sampled_from([views, views[1:]]))),
    }


@cache
def _entry(name: str, *resources: Resource) -> ListedPod:
    return listed(name, c0={each: PLACES[name][each] for each in resources} or None)


@cache
def _file_of(name: str, init: bool, right: bool) -> Containers:
    held = {"c0": PLACES[name] if right else PLACES["p"]}
    return {**held, "i": PLACES[name]} if init else held


@cache
def _view_of(name: str, *, terminal: bool) -> PodView:
    return replace(VIEWS[name], terminal=terminal)


@patient
@given(st.lists(_looks(), min_size=2, max_size=5))
def test_what_is_settled_changes_no_result(looks: list[dict[str, Any]]) -> None:
    record = Record()
    for look in looks:
        settled = settle(record.settled, record.open, **look)
        rest = [each for each in look["listed"] if id(each) not in settled.by_entry]
        record = read_record(**look | {"listed": rest}, seen=Seen(), settled=settled)
        afresh = read_record(**look, seen=Seen())
        assert sorted(map(repr, record.pods)) == sorted(map(repr, afresh.pods))
        assert record.shapes == afresh.shapes
        assert not any(settled.by_uid.keys() & {each.uid} for each in look["services"])
        for each in Resource:
            assert record.held(each) == afresh.held(each)
        for name in NAMES:
            assert record.lists(VIEWS[name].id.key) == afresh.lists(VIEWS[name].id.key)
            assert record.find(CORE, PLACES[name][CORE]) == afresh.find(CORE, PLACES[name][CORE])
            assert record.of_uid(f"u-{name}") == afresh.of_uid(f"u-{name}")


def test_a_pod_of_which_nothing_changes_is_settled() -> None:
    look: dict[str, Any] = {
        "listed": [_entry("p", CORE, MEMORY)],
        "written": Checkpoint({"u-p": _file_of("p", init=True, right=True)}),
        "services": (),
        "pods": pods_of(VIEWS["p"]),
    }
    record = read_record(**look, seen=Seen())
    settled = settle(record.settled, record.open, **look)
    assert settled.pods == record.pods
    assert settle(settled, (), **look) is settled
