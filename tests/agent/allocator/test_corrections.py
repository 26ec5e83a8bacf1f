"""Assignments that the checkpoint or ``List`` confirms or corrects (R6).

UIDs that come late: test_restarts.py; guesses whose slots are offered again: test_wrong_guesses.py.
"""

from typing import Any

from agent.allocator.corrections import (
    correct_by_checkpoint,
    correct_by_list,
)
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.interfaces import Checkpoint, Correction
from agent.allocator.snapshot_pod import SnapshotPod
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from placement.pods import PodId
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    cases,
    checkpoint_of,
    container,
    ids,
    pods_of,
    snapshot_of,
    snapshot_pod,
    view,
)

A, B = ids("GPU-0", range(50)), ids("GPU-0", range(50, 100))
POD = view("p", container("i", kind=INIT), container("c0"), container("c1"))
OTHER = view("q")
PODS = pods_of(POD, OTHER)
NOTHING = Checkpoint()
OTHERS = checkpoint_of(q={"c0": {CORE: A}})
STATIC = Checkpoint({"static": {"c0": {CORE: A}}})


def _current(
    evidence: Evidence = Evidence.ORDER, *, name: str = "c0", allocated: bool = True
) -> CurrentPod:
    assignment = Assignment(name, CORE, A, evidence, allocated)
    return CurrentPod(POD.id, "u-p", assignments=(assignment,))


GUESSED, KNOWN = _current(), _current(Evidence.WITNESS)


def _right(found: list[Correction]) -> list[ContainerRef]:
    """Return the proven containers in corrections of the guess."""
    wrong = ContainerRef(POD.id, "c0")
    assert all(each == Correction(CORE, A, wrong, each.proven) for each in found)
    return [each.proven for each in found]


def _by_checkpoint(
    now: Checkpoint,
    current: CurrentPod = GUESSED,
    before: Checkpoint = NOTHING,
    *,
    may_be_new: bool = True,
) -> tuple[int, list[ContainerRef]]:
    """Return how many assignments are left, and the proven containers of the others."""
    current, found = correct_by_checkpoint(
        current, before, now, may_be_new=lambda *_entry: may_be_new, pods=PODS
    )
    return len(current.assignments), _right(found)


@cases(
    "now, right",
    {
        "of another pod": (OTHERS, ContainerRef(OTHER.id, "c0")),
        "of the same pod": (checkpoint_of(p={"c1": {CORE: A}}), ContainerRef(POD.id, "c1")),
        "of one that only the kubelet knows": (STATIC, ContainerRef(PodId("", "", "static"), "c0")),
    },
)
def test_a_guess_is_corrected_if_the_checkpoint_newly_has_its_slots_at_another_container(
    now: Checkpoint, right: ContainerRef
) -> None:
    assert _by_checkpoint(now) == (0, [right])


@cases(
    "given",
    {
        "the checkpoint does not have it yet": {"now": NOTHING},
        "it has an ended pod's entry besides (K29)": {
            "now": checkpoint_of(p={"c0": {CORE: A}}, q={"c0": {CORE: A}})
        },
        "it has others": {"now": checkpoint_of(q={"c0": {CORE: B}})},
        "it has the other resource": {"now": checkpoint_of(q={"c0": {MEMORY: A}})},
        "it had that before": {"now": OTHERS, "before": OTHERS},
        "its pod is no longer listed (K33)": {"now": OTHERS, "may_be_new": False},
        "it is reused from an init container (K7)": {"now": checkpoint_of(p={"i": {CORE: A}})},
        "it was no guess": {"now": OTHERS, "current": KNOWN},
        "it is a reservation": {"now": OTHERS, "current": _current(allocated=False)},
    },
)
def test_nothing_else_is_corrected_by_the_checkpoint(given: dict[str, Any]) -> None:
    assert _by_checkpoint(**given) == (1, [])


DENIES, HAS = snapshot_pod(POD), snapshot_pod(POD, c0={CORE: A})
OTHER_HAS = snapshot_pod(OTHER, c0={CORE: A})
Q = ContainerRef(OTHER.id, "c0")


@cases(
    "current, shown, left, right",
    {
        "it shows the slots": (GUESSED, [HAS], 1, []),
        "it shows the container without": (GUESSED, [DENIES, snapshot_pod(OTHER)], 0, []),
        "it shows it at another": (GUESSED, [DENIES, OTHER_HAS], 0, [Q]),
        "it shows it at another, and ours not at all": (GUESSED, [OTHER_HAS], 0, [Q]),
        "it does not show our pod": (GUESSED, [snapshot_pod(OTHER, c0={CORE: B})], 1, []),
        "no guess, and another's entry has it": (KNOWN, [OTHER_HAS], 1, []),
        "no guess, and its own entry has not": (KNOWN, [DENIES], 0, []),
        "it shows no init containers (K4)": (_current(name="i"), [DENIES], 1, []),
    },
)
def test_an_assignment_that_list_contradicts_is_void_and_a_wrong_guess_is_logged(
    current: CurrentPod, shown: list[SnapshotPod], left: int, right: list[ContainerRef]
) -> None:
    after, found = correct_by_list(current, snapshot_of(*shown))
    assert (len(after.assignments), _right(found)) == (left, right)
