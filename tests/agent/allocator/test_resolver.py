"""Which container is asking (R3, R4)."""

from collections import Counter
from dataclasses import replace

import pytest

from agent.allocator.model.containers import Places
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.record import Record
from agent.allocator.recorded_pod import RecordedPod
from agent.allocator.resolver import Ask, Resolution, Turn, assumed_container, resolve
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import Demand
from contract.resource import Resource
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    container,
    ids,
    listed,
    pod_id,
    record_of,
    recorded,
    view,
)

A, B, C = (view(name, at=at) for at, name in enumerate("abc", 1))
CORES, BLOCKS = ids("GPU-0", range(50)), ids("GPU-0", range(4))
FULL: Places = {CORE: CORES, MEMORY: BLOCKS}
WITNESS, ORDER = Evidence.WITNESS, Evidence.ORDER
AFTER_START = Turn()


def _pod(pod: PodView, **held: Places) -> RecordedPod:
    return recorded(pod, **held)


def _nameless(name: str, **held: Places | None) -> RecordedPod:
    """A pod that only the kubelet knows."""
    entry = listed(name, **held)
    has = {each.name: each.held for each in entry.containers if each.held}
    return RecordedPod(pod_id(name, ""), "", None, entry, has)


def _turn(*pods: RecordedPod, asker: PodView | None = None, guessed: bool = False) -> Turn:
    """What a call of *asker* has left, when ``List`` showed *pods*."""
    turn = Turn(None, {}, guessed=False)
    if asker is None:
        return replace(turn, listed=Counter(each.shape for each in pods))
    return turn.after(record_of(*pods), asker.id, guessed=guessed)


def _resolve(
    record: Record,
    turn: Turn,
    resource: Resource = CORE,
    size: int = 50,
    *,
    owner: PodId | None = None,
    last_resort: bool = True,
) -> Resolution:
    return resolve(Ask(resource, size, owner), record, turn, last_resort=last_resort)


def _who(found: Resolution) -> tuple[str, Evidence]:
    return f"{found.pod.name}/{found.container.name}", found.evidence


def _refusal(record: Record, turn: Turn, size: int = 50, *, last_resort: bool = True) -> str:
    with pytest.raises(ResolutionError) as caught:
        _resolve(record, turn, size=size, last_resort=last_resort)
    return str(caught.value)


# --- whose turn it is -------------------------------------------------------------------


def test_a_sole_newcomer_is_asking() -> None:
    record = record_of(_pod(A, c0=FULL), _pod(B))
    assert _who(_resolve(record, _turn(_pod(A, c0=FULL), asker=A))) == ("b/c0", WITNESS)


def test_a_newcomer_that_another_of_its_name_may_be_is_a_guess() -> None:
    doubtful = replace(_pod(B), sure=False)
    assert _who(_resolve(record_of(doubtful), _turn())) == ("b/c0", ORDER)


def test_without_newcomers_the_pod_of_the_last_call_is_asking() -> None:
    half = _pod(A, c0={CORE: CORES})
    found = _resolve(record_of(half), _turn(_pod(A), asker=A), MEMORY, 4)
    assert _who(found) == ("a/c0", WITNESS)


def test_a_newcomer_ends_the_admissions_before_it() -> None:
    """The kubelet admits one pod at a time (K1): what lacks something was rejected (K8)."""
    before = _turn(_pod(A), asker=A)
    record = record_of(_pod(A), _pod(B))
    after = before.after(record, B.id, guessed=False)
    assert after.passed == {A.id}
    assert _who(_resolve(record, after)) == ("b/c0", WITNESS)
    done = record_of(_pod(A), _pod(B, c0=FULL))
    assert "waiting" in _refusal(done, after, last_resort=False)


def test_two_newcomers_are_rivals_and_the_newest_is_the_likeliest() -> None:
    """Those before it have been rejected without a call: there was no place for them."""
    found = _resolve(record_of(_pod(A), _pod(B)), _turn())
    assert _who(found) == ("b/c0", ORDER)
    assert [_who(each) for each in found.rivals] == [("a/c0", ORDER)]


def test_one_of_two_newcomers_that_asks_for_this_is_certain() -> None:
    other = view("b", container("c0", 60, 4), at=2)
    assert _who(_resolve(record_of(_pod(A), _pod(other)), _turn())) == ("a/c0", WITNESS)


def test_the_pod_of_the_last_call_is_a_guess_where_a_newcomer_lacks_something() -> None:
    other = view("b", container("c0", 60, 4), at=2)
    found = _resolve(record_of(_pod(A), _pod(other)), _turn(_pod(A), asker=A))
    assert _who(found) == ("a/c0", ORDER)


@pytest.mark.parametrize(("held", "evidence"), [({}, ORDER), ({"c0": {CORE: CORES}}, WITNESS)])
def test_a_guess_is_certain_once_list_shows_its_answer(
    held: dict[str, Places], evidence: Evidence
) -> None:
    turn = _turn(_pod(A), asker=A, guessed=True)
    found = _resolve(record_of(_pod(A, **held)), turn, MEMORY if held else CORE, 4 if held else 50)
    assert _who(found) == ("a/c0", evidence)


def test_the_first_call_after_an_agents_start_is_a_guess_among_all_that_lack_something() -> None:
    """Nobody can tell which of them is new."""
    found = _resolve(record_of(_pod(A), _pod(B), _pod(C, c0=FULL)), AFTER_START)
    assert (_who(found), [_who(each)[0] for each in found.rivals]) == (("b/c0", ORDER), ["a/c0"])


def test_as_a_last_resort_one_that_cannot_be_asking_by_all_that_is_known_is() -> None:
    turn = _turn(_pod(A), _pod(B), asker=A)
    record = record_of(_pod(A, c0=FULL), _pod(B))
    assert _refusal(record, turn, last_resort=False)
    assert _who(_resolve(record, turn)) == ("b/c0", ORDER)


def test_as_a_last_resort_pods_that_no_other_has_passed_go_first() -> None:
    turn = Turn(None, _turn(_pod(A), _pod(B)).listed, passed=frozenset({B.id}))
    assert _who(_resolve(record_of(_pod(A), _pod(B)), turn)) == ("a/c0", ORDER)


@pytest.mark.parametrize("why", ["terminal", "over"])
def test_a_pod_that_has_ended_is_not_asking(why: str) -> None:
    ended = replace(_pod(B), over=True) if why == "over" else _pod(replace(B, terminal=True))
    assert _who(_resolve(record_of(_pod(A), ended), _turn())) == ("a/c0", WITNESS)


# --- what List showed is compared by shape ------------------------------------------------


def test_a_name_that_comes_back_with_other_containers_is_a_newcomer() -> None:
    other = view("a", container("main"), uid="other", at=9)
    turn = _turn(_pod(A, c0=FULL), asker=A)
    assert _who(_resolve(record_of(_pod(other)), turn)) == ("a/main", WITNESS)


def test_a_second_entry_of_a_name_is_a_newcomer_and_the_first_is_not() -> None:
    """A pod deleted by force is listed until it has ended, beside its successor (K20)."""
    again = view("a", uid="again", at=9)
    record = record_of(_pod(A, c0=FULL), _pod(again))
    found = _resolve(record, _turn(_pod(A, c0=FULL), asker=A))
    assert (found.pod.uid, found.evidence) == ("again", WITNESS)


def test_of_two_entries_of_a_name_that_show_nothing_the_newer_pod_is_the_newcomer() -> None:
    again = view("a", uid="again", at=9)
    found = _resolve(record_of(_pod(A), _pod(again)), _turn(_pod(A), asker=A))
    assert (found.pod.uid, found.rivals) == ("again", ())


def test_a_name_that_is_listed_as_often_as_before_is_no_newcomer() -> None:
    again = view("a", uid="again", at=9)
    turn = _turn(_pod(A, c0=FULL), asker=A)
    assert _refusal(record_of(_pod(again)), turn, last_resort=False)


# --- refusals and wrong guesses -----------------------------------------------------------


def test_a_refusal_ends_everybody_listed_who_lacks_something() -> None:
    record = record_of(_pod(A), _pod(B, c0={CORE: CORES}), _pod(C, c0=FULL))
    turn = _turn(_pod(A), _pod(B), asker=A).refused(record)
    assert turn.passed == {A.id, B.id}
    assert _refusal(record, turn, last_resort=False)
    later = record_of(*record.pods, _pod(view("d", at=4)))
    assert _who(_resolve(later, turn)) == ("d/c0", WITNESS)


def test_a_guess_that_was_wrong_gives_the_turn_back() -> None:
    """The pod of the call before is asking on; the guessed one is tried after others."""
    first = _turn(_pod(A), asker=A)
    guessed = first.after(record_of(_pod(A), _pod(B)), B.id, guessed=True)
    back = guessed.disproved()
    assert (back.asker, set(back.tried)) == (A.id, {B.id})


def test_a_newcomer_is_a_guess_while_one_that_was_there_may_be_another_of_its_name() -> None:
    """Its name came back in its place: the count of its shape has not grown."""
    before = _turn(_pod(A), _pod(C), asker=C)
    remade = view("a", at=5, uid="u-remade")
    record = record_of(_pod(remade), _pod(B), _pod(C, c0=FULL))
    assert _who(_resolve(record, before)) == ("b/c0", ORDER)
    assert _who(_resolve(record_of(_pod(A), _pod(B), _pod(C, c0=FULL)), before)) == (
        "b/c0",
        WITNESS,
    )


def test_what_was_no_guess_is_not_disproved() -> None:
    turn = _turn(_pod(A), asker=A)
    assert turn.disproved() is turn
    assert AFTER_START.disproved() is AFTER_START


def test_several_calls_of_one_pod_are_one_turn() -> None:
    first = _turn(_pod(A), asker=A)
    record = record_of(_pod(A), _pod(B))
    guessed = first.after(record, B.id, guessed=True).after(record, B.id, guessed=True)
    assert guessed.disproved().asker == A.id


# --- without List ---------------------------------------------------------------------------


def _blind(*pods: RecordedPod) -> Record:
    return Record(tuple(replace(each, listed=None) for each in pods))


def test_without_list_the_oldest_that_lacks_this_is_guessed() -> None:
    found = _resolve(_blind(_pod(B), _pod(A), _pod(C, c0=FULL)), AFTER_START)
    assert (_who(found), [_who(each)[0] for each in found.rivals]) == (("a/c0", ORDER), ["b/c0"])


def test_without_list_the_pod_of_the_last_call_goes_first() -> None:
    turn = Turn(B.id, guessed=False)
    assert _who(_resolve(_blind(_pod(A), _pod(B)), turn)) == ("b/c0", ORDER)
    half = _pod(C, c0={CORE: CORES})
    found = _resolve(_blind(_pod(A), half), AFTER_START, MEMORY, 4)
    assert _who(found) == ("c/c0", ORDER)


def test_a_call_without_list_leaves_what_was_listed_before() -> None:
    turn = _turn(_pod(A), asker=A)
    after = turn.after(_blind(_pod(A), _pod(B)), B.id, guessed=False)
    assert (after.asker, after.listed, after.guessed) == (B.id, turn.listed, True)
    assert turn.refused(_blind(_pod(A))) is turn


# --- within the pod -----------------------------------------------------------------------

THREE = view(
    "p", container("i", 20, 2, kind=INIT), container("c0", 50, 4), container("c1", 30, 4), at=1
)


@pytest.mark.parametrize(
    ("held", "resource", "size", "name"),
    [
        ({}, CORE, 20, "i"),
        ({}, CORE, 50, None),
        ({"i": FULL}, CORE, 50, "c0"),
        ({"i": FULL}, CORE, 30, None),
        ({"i": {CORE: CORES}}, MEMORY, 2, "i"),
        ({"i": {CORE: CORES}}, CORE, 50, None),
        ({"i": FULL, "c0": {MEMORY: BLOCKS}}, CORE, 50, "c0"),
        ({"i": FULL, "c0": {MEMORY: BLOCKS}}, MEMORY, 4, None),
        ({"i": FULL, "c0": FULL}, MEMORY, 4, "c1"),
        ({"i": FULL, "c0": FULL, "c1": FULL}, MEMORY, 4, None),
    ],
)
def test_within_a_pod_the_first_container_that_lacks_something_is_asking_if_it_asks_for_this(
    held: dict[str, Places], resource: Resource, size: int, name: str | None
) -> None:
    record = record_of(_pod(THREE, **held))
    if name is None:
        with pytest.raises(ResolutionError):
            _resolve(record, _turn(), resource, size)
    else:
        assert _who(_resolve(record, _turn(), resource, size)) == (f"p/{name}", WITNESS)


def test_a_call_that_names_an_init_containers_places_is_of_that_pod() -> None:
    """K7."""
    record = record_of(_pod(A), _pod(B))
    assert _who(_resolve(record, _turn(), owner=A.id)) == ("a/c0", WITNESS)


def test_a_container_without_memory_is_served_with_its_cores() -> None:
    pod = view("p", container("c0", 100, 0), container("c1", 50, 4))
    record = record_of(_pod(pod, c0={CORE: CORES}))
    assert _who(_resolve(record, _turn())) == ("p/c1", WITNESS)


# --- pods that only the kubelet knows -----------------------------------------------------


def test_a_pod_that_only_the_kubelet_knows_is_a_guess_at_the_first_that_lacks_this() -> None:
    pod = _nameless("static", c0={CORE: CORES}, c1=None)
    assert _who(_resolve(record_of(pod), _turn())) == ("static/c1", ORDER)
    found = _resolve(record_of(pod), _turn(), MEMORY, 4)
    assert (_who(found), found.view) == (("static/c0", ORDER), None)
    assert found.container.demand == Demand(50, 4)


def test_a_pod_that_the_api_shows_goes_before_one_that_only_the_kubelet_knows() -> None:
    """And it is a guess, because the other may be asking as well."""
    record = record_of(_pod(A), _nameless("static", c0=None))
    assert _who(_resolve(record, _turn())) == ("a/c0", ORDER)


@pytest.mark.parametrize(
    ("cores", "memory", "demand"),
    [
        (50, 4, Demand(50, 4)),
        (50, 0, Demand(50, 1)),
        (200, 0, Demand(200, 0)),
        (0, 4, Demand(1, 4)),
    ],
)
def test_what_is_not_known_of_a_share_is_assumed_to_be_one_unit(
    cores: int, memory: int, demand: Demand
) -> None:
    held = {CORE: range(cores), MEMORY: range(memory)}
    assert assumed_container("c0", held).demand == demand


# --- nobody ---------------------------------------------------------------------------------


def test_a_refusal_names_who_is_waiting_and_for_what() -> None:
    pods = [view(f"p{index}", container("c0", 10 + index, 1)) for index in range(7)]
    record = record_of(*map(_pod, pods), _pod(C, c0=FULL))
    assert _refusal(record, _turn()) == (
        "50 places of core were asked for, but no waiting container asks for that; waiting: "
        "default/p0 container c0 (cores 10, memory 1); default/p1 container c0 (cores 11, "
        "memory 1); default/p2 container c0 (cores 12, memory 1); default/p3 container c0 "
        "(cores 13, memory 1); default/p4 container c0 (cores 14, memory 1) and 2 more"
    )
    assert _refusal(record_of(), _turn()).endswith("waiting: none")
