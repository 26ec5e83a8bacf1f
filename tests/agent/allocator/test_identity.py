"""Which pod each entry of ``List`` is (R5): it tells names, and no UIDs."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.identity import identify
from agent.allocator.in_service import Answered, InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import ListedPod
from agent.allocator.pods import kubelet_uid
from contract.allocation import Evidence
from tests.agent.builders import (
    CORE,
    container,
    ids,
    listed,
    patient,
    pod_id,
    pods_of,
    view,
)

A, B = ids("GPU-0", range(3)), ids("GPU-0", range(3, 6))
HOLDS_A, HOLDS_B, EMPTY = listed("p", c0={CORE: A}), listed("p", c0={CORE: B}), listed("p", c0=None)
OLD = view("p", container("c0", 3, 1), uid="old", at=1)
NEW = view("p", container("c0", 3, 1), uid="new", at=2)


def _file(**held: frozenset[str]) -> Checkpoint:
    """The checkpoint: UID -> what its container ``c0`` holds."""
    return Checkpoint({uid: {"c0": {CORE: places}} for uid, places in held.items()})


def _service(uid: str, held: frozenset[str]) -> InService:
    answer = Answered("c0", CORE, held, Evidence.WITNESS, allocated=True)
    return InService("life", pod_id("p", uid), uid, answers=(answer,))


def _found(
    entries: Sequence[ListedPod],
    *,
    file: Checkpoint | None = None,
    service: InService | None = None,
    views: Sequence[PodView] = (OLD, NEW),
    departed: Sequence[PodView] = (),
    confirmed: Collection[str] = (),
    asker: PodId | None = None,
) -> list[tuple[ListedPod, str, bool]]:
    """Give every entry with the UID of its pod, and whether it is sure."""
    found = identify(
        entries,
        file or Checkpoint(),
        () if service is None else (service,),
        pods_of(*views, departed=departed),
        confirmed=frozenset(confirmed),
        asker=asker,
    )
    return [(each.entry, each.uid, each.sure) for each in found]


def _uids(*args: Sequence[ListedPod], **given: object) -> list[str]:
    return [uid for _, uid, _ in _found(*args, **given)]  # type: ignore[arg-type]


# --- entries that show places ---------------------------------------------------------


def test_an_entry_is_the_pod_that_has_its_places_in_the_file() -> None:
    for entries in itertools.permutations([HOLDS_A, HOLDS_B]):
        found = _found(entries, file=_file(old=A, new=B))
        assert sorted(found, key=lambda each: each[1]) == [
            (HOLDS_B, "new", True),
            (HOLDS_A, "old", True),
        ]


def test_our_answers_go_before_the_file_where_an_ended_pod_had_the_same_places() -> None:
    """K29: its entry stays until the next write."""
    found = _found([HOLDS_A], file=_file(old=A), service=_service("new", A))
    assert [uid for _, uid, _ in found] == ["new"]
    assert _uids([HOLDS_A], file=_file(old=A)) == ["old"]


def test_places_of_another_container_or_another_name_say_nothing() -> None:
    other = Checkpoint({"old": {"c1": {CORE: A}}})
    assert _uids([HOLDS_A], file=other, views=[NEW]) == ["new"]
    elsewhere = view("q", container("c0", 3, 1), uid="elsewhere")
    assert _uids([HOLDS_A], file=_file(elsewhere=A), views=[NEW, elsewhere]) == ["new"]


def test_a_static_pod_is_found_by_the_hash_that_the_file_has() -> None:
    """K34."""
    mirror = replace(view("p", container("c0", 3, 1), uid="mirror"), runtime_uid="hash")
    assert _uids([HOLDS_A], file=_file(hash=A), views=[mirror]) == ["hash"]
    assert _uids([EMPTY], views=[mirror]) == ["hash"]


def test_a_pod_that_the_api_does_not_show_has_the_files_uid() -> None:
    assert _uids([HOLDS_A], file=_file(static=A), views=[]) == ["static"]


# --- entries that show nothing --------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "uid"),
    [
        ({"views": [NEW]}, "new"),
        ({"views": [OLD, NEW]}, "old"),
        ({"views": [OLD, NEW], "file": _file(old=A)}, "new"),
        ({"views": [replace(OLD, terminal=True), NEW]}, "new"),
        ({"views": [NEW], "departed": [OLD]}, "new"),
        ({"views": [NEW], "departed": [OLD], "asker": OLD.id}, "old"),
        ({"views": [NEW], "departed": [OLD], "file": _file(new=A)}, "old"),
        ({"views": [], "departed": [OLD]}, "old"),
        ({"views": []}, ""),
        ({"views": [view("q", uid="other")]}, ""),
        ({"views": [view("p", container("another"), uid="other")]}, ""),
        ({"views": [], "service": _service("static", A)}, "static"),
    ],
    ids=[
        "the only one",
        "the older of two",
        "one that had something is over, and another has come",
        "one that has ended is not admitted",
        "one that has left the API goes behind",
        "but not while it is being admitted (K20)",
        "nor where the other has had something",
        "the one that has left the API alone",
        "nobody knows it",
        "another name",
        "other containers",
        "the pod in service",
    ],
)
def test_an_entry_that_shows_nothing_is_the_likeliest_pod_of_its_name(
    given: dict[str, object], uid: str
) -> None:
    assert _uids([EMPTY], **given) == [uid]


def test_of_two_entries_one_that_shows_places_is_settled_first() -> None:
    for entries in itertools.permutations([EMPTY, HOLDS_A]):
        found = {uid: entry for entry, uid, _ in _found(entries, file=_file(old=A))}
        assert found == {"old": HOLDS_A, "new": EMPTY}


def test_the_pod_in_service_is_not_one_of_two_nameless_entries() -> None:
    assert _uids([EMPTY, EMPTY], views=[], service=_service("static", A)) == ["", ""]


# --- sure -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sure"),
    [
        ({"views": [NEW], "confirmed": ["new"]}, True),
        ({"views": [NEW]}, False),
        ({"views": [NEW, OLD], "confirmed": ["new", "old"]}, False),
        ({"views": [NEW], "departed": [OLD], "confirmed": ["new"]}, False),
        ({"views": [NEW], "departed": [OLD], "confirmed": ["new"], "file": _file(old=A)}, True),
        ({"views": [NEW], "confirmed": ["new"], "file": _file(new=A)}, False),
        ({"views": []}, True),
    ],
    ids=[
        "the API showed it before and after List",
        "List showed the name first",
        "two of its name",
        "another of its name has left the API, and may still be listed (K20)",
        "that one had something, and shows nothing now",
        "it had something: another of its name may have come",
        "nobody knows it: there is nothing to be wrong about",
    ],
)
def test_a_pod_is_sure_where_no_other_of_its_name_can_be_meant(
    given: dict[str, object], sure: bool
) -> None:
    ((_, _, found),) = _found([EMPTY], **given)  # type: ignore[arg-type]
    assert found is sure


# --- whatever is shown ----------------------------------------------------------------

_UIDS = st.sampled_from(["u1", "u2", "u3"])
_HELD = st.sampled_from([None, {CORE: A}, {CORE: B}, {CORE: A | B}])
_NAMES = st.sampled_from(["p", "q"])
_entries = st.lists(st.builds(lambda name, held: listed(name, c0=held), _NAMES, _HELD), max_size=4)
_views = st.lists(
    st.builds(
        lambda name, uid, at, terminal: view(name, uid=uid, at=at, terminal=terminal),
        _NAMES,
        _UIDS,
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda each: each.id.uid,
)
_files = st.dictionaries(_UIDS | st.just("unknown"), st.sampled_from([A, B])).map(
    lambda held: _file(**held)
)


@patient
@given(_entries, _views, _files, st.data())
def test_every_entry_is_one_pod_whatever_the_order_and_no_pod_is_two(
    entries: list[ListedPod], views: list[PodView], file: Checkpoint, data: st.DataObject
) -> None:
    found = identify(entries, file, (), pods_of(*views), confirmed=frozenset(), asker=None)
    assert sorted(repr(each.entry) for each in found) == sorted(map(repr, entries))
    taken = [each.uid for each in found if each.uid]
    assert len(taken) == len(set(taken))
    for each in found:
        assert each.id.key == each.entry.key
        assert each.view is None or kubelet_uid(each.view) == each.uid
    shuffled = pods_of(*data.draw(st.permutations(views)))
    again = identify(entries, file, (), shuffled, confirmed=frozenset(), asker=None)
    assert again == found
