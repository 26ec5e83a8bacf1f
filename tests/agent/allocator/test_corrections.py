"""Assignments that the checkpoint or ``List`` confirms or corrects (R6)."""

from dataclasses import replace
from typing import Any

import pytest

from agent.allocator.corrections import (
    correct_by_checkpoint,
    correct_by_list,
    correct_by_offer,
    with_uid,
)
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.interfaces import Checkpoint, Correction
from agent.allocator.snapshot_pod import SnapshotPod
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from placement.pods import PodId, PodInfo
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
    record_of,
    recorded,
    view,
    written,
)

A, B = ids("GPU-0", range(50)), ids("GPU-0", range(50, 100))
BLOCKS = ids("GPU-0", range(4))
POD = view("p", container("i", kind=INIT), container("c0"), container("c1"))
OTHER = view("q")
PODS = pods_of(POD, OTHER)
GUESS = Assignment("c0", CORE, A, Evidence.ORDER, allocated=True)
NOTHING = Checkpoint()
OTHERS = written(q={"c0": {CORE: A}})
STATIC = Checkpoint({"static": {"c0": {CORE: A}}})


def _service(
    evidence: Evidence = Evidence.ORDER, *, name: str = "c0", allocated: bool = True
) -> CurrentPod:
    assignment = Assignment(name, CORE, A, evidence, allocated)
    return CurrentPod(POD.id, "u-p", assignments=(assignment,))


GUESSED, KNOWN = _service(), _service(Evidence.WITNESS)


def _right(found: list[Correction]) -> list[ContainerRef]:
    """Whose they are, of corrections of the guess."""
    wrong = ContainerRef(POD.id, "c0")
    assert all(each == Correction(CORE, A, wrong, each.proven) for each in found)
    return [each.proven for each in found]


# --- by the checkpoint ------------------------------------------------------------------


def _by_file(
    now: Checkpoint,
    service: CurrentPod = GUESSED,
    before: Checkpoint = NOTHING,
    *,
    may_be_new: bool = True,
) -> tuple[int, list[ContainerRef]]:
    """Return how many answers are left, and whose the others are."""
    service, found = correct_by_checkpoint(
        service, before, now, may_be_new=lambda *_entry: may_be_new, pods=PODS
    )
    return len(service.assignments), _right(found)


@cases(
    "now, right",
    {
        "of another pod": (OTHERS, ContainerRef(OTHER.id, "c0")),
        "of the same pod": (written(p={"c1": {CORE: A}}), ContainerRef(POD.id, "c1")),
        "of one that only the kubelet knows": (STATIC, ContainerRef(PodId("", "", "static"), "c0")),
    },
)
def test_a_guess_that_the_file_newly_shows_at_another_container_is_corrected(
    now: Checkpoint, right: ContainerRef
) -> None:
    assert _by_file(now) == (0, [right])


@cases(
    "given",
    {
        "the file does not show it yet": {"now": NOTHING},
        "it shows an ended pod's entry besides (K29)": {
            "now": written(p={"c0": {CORE: A}}, q={"c0": {CORE: A}})
        },
        "it shows others": {"now": written(q={"c0": {CORE: B}})},
        "it shows the other resource": {"now": written(q={"c0": {MEMORY: A}})},
        "it showed that before": {"now": OTHERS, "before": OTHERS},
        "its pod is listed no more (K33)": {"now": OTHERS, "may_be_new": False},
        "it was handed on by an init container (K7)": {"now": written(p={"i": {CORE: A}})},
        "it was no guess": {"now": OTHERS, "service": KNOWN},
        "it was only promised": {"now": OTHERS, "service": _service(allocated=False)},
    },
)
def test_nothing_else_is_corrected_by_the_file(given: dict[str, Any]) -> None:
    assert _by_file(**given) == (1, [])


# --- by List ----------------------------------------------------------------------------

DENIES, HAS = recorded(POD), recorded(POD, c0={CORE: A})
OTHER_HAS = recorded(OTHER, c0={CORE: A})
Q = ContainerRef(OTHER.id, "c0")


@cases(
    "service, shown, left, right",
    {
        "it shows the answer": (GUESSED, [HAS], 1, []),
        "it shows the container without": (GUESSED, [DENIES, recorded(OTHER)], 0, []),
        "it shows it at another": (GUESSED, [DENIES, OTHER_HAS], 0, [Q]),
        "it shows it at another, and ours not at all": (GUESSED, [OTHER_HAS], 0, [Q]),
        "it does not show our pod": (GUESSED, [recorded(OTHER, c0={CORE: B})], 1, []),
        "no guess, and another's entry has it": (KNOWN, [OTHER_HAS], 1, []),
        "no guess, and its own entry has not": (KNOWN, [DENIES], 0, []),
        "of an init container it tells nothing (K4)": (_service(name="i"), [DENIES], 1, []),
    },
)
def test_an_assignment_that_list_contradicts_is_void_and_a_wrong_guess_is_logged(
    service: CurrentPod, shown: list[SnapshotPod], left: int, right: list[ContainerRef]
) -> None:
    after, found = correct_by_list(service, record_of(*shown))
    assert (len(after.assignments), _right(found)) == (left, right)


# --- by what is offered -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "offered", "file", "shown", "left"),
    [
        (GUESSED, {CORE: A | B}, NOTHING, [], 0),
        (KNOWN, {CORE: A | B}, NOTHING, [], 1),
        (GUESSED, {CORE: B}, NOTHING, [], 1),
        (GUESSED, {CORE: A - {"GPU-0::0"}}, NOTHING, [], 1),
        (GUESSED, {MEMORY: A | B}, NOTHING, [], 1),
        (GUESSED, {CORE: A | B}, OTHERS, [], 1),
        (GUESSED, {CORE: A | B}, NOTHING, [HAS], 1),
    ],
)
def test_a_guess_whose_slots_are_all_offered_again_is_void(
    service: CurrentPod, offered: Any, file: Checkpoint, shown: list[SnapshotPod], left: int
) -> None:
    """What file or ``List`` shows is held although it is offered (K15)."""
    assert len(correct_by_offer(service, offered, file, record_of(*shown)).assignments) == left


def test_without_list_no_guess_is_void_because_its_slots_are_offered() -> None:
    """The kubelet may have forgotten them (K15), and a second container would get the same."""
    snapshot = replace(record_of(), listing=False)
    assert correct_by_offer(GUESSED, {CORE: A | B}, NOTHING, snapshot) == GUESSED


# --- whose UID it is ----------------------------------------------------------------------

ASSIGNMENTS = (GUESS, Assignment("c0", MEMORY, BLOCKS, Evidence.ORDER, allocated=True))


def _identified(
    *views: PodInfo, now: Checkpoint = NOTHING, before: Checkpoint = NOTHING
) -> CurrentPod:
    service = CurrentPod(pod_id("p", ""), "", assignments=ASSIGNMENTS)
    entries = [listed("p", c0=None)]
    return with_uid(
        service, before, now, entries=entries, pods=pods_of(*views), identified=frozenset()
    )


def test_a_nameless_pod_gets_the_uid_that_the_file_newly_shows_with_its_answer() -> None:
    found = _identified(now=STATIC)
    assert (found.id, found.uid) == (pod_id("p", "static"), "static")
    assert _identified(now=STATIC, before=STATIC).uid == ""


def test_a_nameless_pod_whose_uid_was_a_rejected_pods_gets_its_own_once_the_file_shows_it() -> None:
    """The rejected pod's entry was newly written, by a write that came late (K33)."""
    taken = replace(_identified(now=STATIC), uid="rejected")
    assert (
        with_uid(taken, NOTHING, STATIC, entries=[], pods=pods_of(), identified=frozenset()).uid
        == "static"
    )
    both = Checkpoint({**STATIC.pods, "rejected": STATIC.pods["static"]})
    assert (
        with_uid(taken, NOTHING, both, entries=[], pods=pods_of(), identified=frozenset()).uid
        == "rejected"
    )


@cases(
    "containers, names",
    {
        "as it was guessed": ([container("c0")], ["c0", "c0"]),
        "nobody had told of its init container": (
            [container("i", kind=INIT), container("c0")],
            ["i", "i"],
        ),
    },
)
def test_a_nameless_pod_is_the_one_that_the_api_has_told_of_since(
    containers: list[Any], names: list[str]
) -> None:
    found = _identified(view("p", *containers, uid="late"))
    assert (found.id, found.uid) == (pod_id("p", "late"), "late")
    assert [(each.container, each.ids) for each in found.assignments] == [
        *zip(names, (A, BLOCKS), strict=True)
    ]


@cases(
    "views",
    {
        "unknown": [],
        "ended": [view("p", uid="late", terminal=True)],
        "asks for other counts": [view("p", container("c0", 60, 4), uid="late")],
        "other containers": [view("p", container("another"), uid="late")],
        "two of the name": [view("p", uid="one"), view("p", uid="two")],
    },
)
def test_a_nameless_pod_stays_so_while_nobody_has_told_which_it_is(views: list[PodInfo]) -> None:
    assert _identified(*views).uid == ""
