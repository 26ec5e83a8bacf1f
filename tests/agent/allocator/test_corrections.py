"""What the checkpoint and ``List`` say of our last answers (R6)."""

from collections.abc import Sequence

import pytest

from agent.allocator.corrections import by_checkpoint, by_list, by_offer, identified
from agent.allocator.in_service import Answered, InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef, Correction
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import ListedPod
from contract.allocation import Evidence
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
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
GUESS = Answered("c0", CORE, A, Evidence.ORDER, allocated=True)
NOTHING = Checkpoint()
NOBODY = record_of()


def _service(*answers: Answered, pod: PodId = POD.id, uid: str = "u-p") -> InService:
    return InService("life", pod, uid, answers=answers or (GUESS,))


def _correction(pod: PodId, name: str) -> Correction:
    return Correction(CORE, A, ContainerRef(POD.id, "c0"), ContainerRef(pod, name))


# --- by the checkpoint ------------------------------------------------------------------


def _by_file(
    now: Checkpoint,
    *,
    service: InService | None = None,
    before: Checkpoint = NOTHING,
    may_be_new: bool = True,
) -> tuple[int, list[Correction]]:
    """Return how many answers are left, and what was corrected."""
    service, found = by_checkpoint(
        service or _service(), before, now, may_be_new=lambda _uid: may_be_new, pods=PODS
    )
    return len(service.answers), found


@pytest.mark.parametrize(
    ("now", "right"),
    [
        (written(q={"c0": {CORE: A}}), (OTHER.id, "c0")),
        (written(p={"c1": {CORE: A}}), (POD.id, "c1")),
        (Checkpoint({"static": {"c0": {CORE: A}}}), (PodId("", "", "static"), "c0")),
    ],
    ids=["of another pod", "of the same pod", "of a pod that only the kubelet knows"],
)
def test_a_guess_that_the_file_newly_shows_at_another_container_is_corrected(
    now: Checkpoint, right: tuple[PodId, str]
) -> None:
    assert _by_file(now) == (0, [_correction(*right)])


@pytest.mark.parametrize(
    "given",
    [
        {"now": NOTHING},
        {"now": written(p={"c0": {CORE: A}}, q={"c0": {CORE: A}})},
        {"now": written(q={"c0": {CORE: B}})},
        {"now": written(q={"c0": {MEMORY: A}})},
        {"now": written(q={"c0": {CORE: A}}), "before": written(q={"c0": {CORE: A}})},
        {"now": written(q={"c0": {CORE: A}}), "may_be_new": False},
        {"now": written(p={"i": {CORE: A}})},
        {
            "now": written(q={"c0": {CORE: A}}),
            "service": _service(Answered("c0", CORE, A, Evidence.WITNESS, allocated=True)),
        },
        {
            "now": written(q={"c0": {CORE: A}}),
            "service": _service(Answered("c0", CORE, A, Evidence.ORDER, allocated=False)),
        },
    ],
    ids=[
        "the file does not show it yet",
        "it shows it where it was given, and an ended pod's entry besides (K29)",
        "it shows others",
        "it shows the other resource",
        "it showed that before",
        "that entry cannot be new: its pod is listed no more (K33)",
        "it was handed on by an init container (K7)",
        "it was no guess",
        "it was only promised",
    ],
)
def test_nothing_else_is_corrected_by_the_file(given: dict[str, object]) -> None:
    assert _by_file(**given) == (1, [])  # type: ignore[arg-type]


# --- by List ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "left", "corrections"),
    [
        ({"p": {"c0": {CORE: A}}}, 1, []),
        ({"p": {}, "q": {}}, 0, []),
        ({"p": {}, "q": {"c0": {CORE: A}}}, 0, [_correction(OTHER.id, "c0")]),
        ({"q": {"c0": {CORE: A}}}, 0, [_correction(OTHER.id, "c0")]),
        ({"q": {"c0": {CORE: B}}}, 1, []),
    ],
    ids=[
        "it shows the answer",
        "it shows the container without",
        "it shows it at another",
        "it shows it at another, and ours not at all",
        "it does not show our pod",
    ],
)
def test_an_answer_that_list_denies_is_void_and_a_wrong_guess_is_named(
    held: dict[str, dict[str, dict[object, frozenset[str]]]],
    left: int,
    corrections: list[Correction],
) -> None:
    views = {"p": POD, "q": OTHER}
    shown = [recorded(views[name], **has) for name, has in held.items()]  # type: ignore[arg-type]
    service, found = by_list(_service(), record_of(*shown))
    assert (len(service.answers), found) == (left, corrections)


def test_an_answer_that_was_no_guess_is_denied_only_by_its_own_entry() -> None:
    known = _service(Answered("c0", CORE, A, Evidence.WITNESS, allocated=True))
    assert by_list(known, record_of(recorded(OTHER, c0={CORE: A}))) == (known, [])
    service, found = by_list(known, record_of(recorded(POD)))
    assert (service.answers, found) == ((), [])


def test_what_an_init_container_was_given_list_does_not_deny() -> None:
    """K4."""
    service = _service(Answered("i", CORE, A, Evidence.WITNESS, allocated=True))
    assert by_list(service, record_of(recorded(POD))) == (service, [])


# --- by what is offered -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "evidence", "left"),
    [
        (A | B, Evidence.ORDER, 0),
        (A | B, Evidence.WITNESS, 1),
        (B, Evidence.ORDER, 1),
        (A - {"GPU-0::0"}, Evidence.ORDER, 1),
    ],
)
def test_a_guess_whose_places_are_all_offered_again_is_void(
    offered: frozenset[str], evidence: Evidence, left: int
) -> None:
    service = _service(Answered("c0", CORE, A, evidence, allocated=True))
    assert len(by_offer(service, {CORE: offered}, NOTHING, NOBODY).answers) == left
    assert by_offer(service, {MEMORY: offered}, NOTHING, NOBODY) == service
    # What file or List shows is held although it is offered (K15).
    assert by_offer(service, {CORE: offered}, written(q={"c0": {CORE: A}}), NOBODY) == service
    assert (
        by_offer(service, {CORE: offered}, NOTHING, record_of(recorded(POD, c0={CORE: A})))
        == service
    )


# --- whose UID it is ----------------------------------------------------------------------

NAMELESS = pod_id("p", "")
ANSWERS = (GUESS, Answered("c0", MEMORY, BLOCKS, Evidence.ORDER, allocated=True))


def _identified(
    *views: PodView,
    answers: Sequence[Answered] = ANSWERS,
    now: Checkpoint = NOTHING,
    before: Checkpoint = NOTHING,
    entries: Sequence[ListedPod] = (listed("p", c0=None),),
) -> InService:
    return identified(
        InService("life", NAMELESS, "", answers=tuple(answers)),
        before,
        now,
        entries=entries,
        pods=pods_of(*views),
    )


def test_a_nameless_pod_gets_the_uid_that_the_file_newly_shows_with_its_answer() -> None:
    now = Checkpoint({"static": {"c0": {CORE: A}}})
    found = _identified(now=now)
    assert (found.pod, found.uid) == (pod_id("p", "static"), "static")
    assert _identified(now=now, before=now).uid == ""


def test_a_nameless_pod_is_the_one_that_the_api_has_told_of_since() -> None:
    found = _identified(view("p", uid="late"))
    assert (found.pod, found.uid, found.answers) == (pod_id("p", "late"), "late", ANSWERS)


def test_with_its_spec_the_containers_of_its_answers_are_known() -> None:
    """Of a nameless pod nobody had told of its init container (K4)."""
    pod = view("p", container("i", kind=INIT), container("c0"), uid="late")
    found = _identified(pod)
    assert [each.container for each in found.answers] == ["i", "i"]


@pytest.mark.parametrize(
    "views",
    [
        [],
        [view("p", uid="late", terminal=True)],
        [view("p", container("c0", 60, 4), uid="late")],
        [view("p", container("another"), uid="late")],
        [view("p", uid="one"), view("p", uid="two")],
    ],
    ids=["unknown", "ended", "asks for other counts", "other containers", "two of the name"],
)
def test_a_nameless_pod_stays_so_while_nobody_has_told_which_it_is(views: list[PodView]) -> None:
    assert _identified(*views).uid == ""
