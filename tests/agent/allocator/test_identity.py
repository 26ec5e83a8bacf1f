"""Which pod each entry of ``List`` is (R5): it tells names, and no UIDs."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import identify, kubelet_uid
from agent.allocator.interfaces import Checkpoint, ListedPod
from contract.allocation import Evidence
from placement.pods import PodId, PodInfo
from tests.agent.builders import CORE, cases, container, ids, listed, patient, pod_id, pods_of, view

A, B = ids("GPU-0", range(3)), ids("GPU-0", range(3, 6))
HOLDS_A, HOLDS_B, EMPTY = (listed("p", c0=held) for held in ({CORE: A}, {CORE: B}, None))
OLD = view("p", container("c0", 3, 1), uid="old", at=1)
NEW = view("p", container("c0", 3, 1), uid="new", at=2)
OTHER_NAME = view("q", container("c0", 3, 1), uid="other")
OTHER_CONTAINERS = view("p", container("another"), uid="other")
MIRROR = replace(view("p", container("c0", 3, 1), uid="mirror"), runtime_uid="hash")


def _file(**held: frozenset[str]) -> Checkpoint:
    """The checkpoint: UID -> what its container ``c0`` holds."""
    return Checkpoint({uid: {"c0": {CORE: places}} for uid, places in held.items()})


def _service(uid: str, held: frozenset[str]) -> CurrentPod:
    assignment = Assignment("c0", CORE, held, Evidence.WITNESS, allocated=True)
    return CurrentPod(pod_id("p", uid), uid, assignments=(assignment,))


def _found(
    entries: Sequence[ListedPod],
    *,
    file: Checkpoint | None = None,
    service: CurrentPod | None = None,
    views: Sequence[PodInfo] = (OLD, NEW),
    departed: Sequence[PodInfo] = (),
    confirmed: Collection[str] = (),
    last_pod: PodId | None = None,
) -> list[tuple[str, ListedPod, bool]]:
    """Return the UID of each entry's pod, the entry, and whether it is sure."""
    found = identify(
        entries,
        file or Checkpoint(),
        () if service is None else (service,),
        pods_of(*views, departed=departed),
        confirmed=frozenset(confirmed),
        last_pod=last_pod,
    )
    return [(each.uid, each.entry, each.sure) for each in found]


ALONE: dict[str, Any] = {"views": [NEW]}
OLD_LEFT: dict[str, Any] = {"views": [NEW], "departed": [OLD]}
NOBODY: dict[str, Any] = {"views": []}
SHOWN: dict[str, Any] = {"confirmed": ["old", "new"]}
OLD_HAD, NEW_HAD = {"file": _file(old=A)}, {"file": _file(new=A)}
NEW_WAS_GIVEN = {"service": _service("new", A)}
OLD_ENDED = {"views": [replace(OLD, terminal=True), NEW]}
ANOTHER_CONTAINERS = ALONE | {"file": Checkpoint({"old": {"c1": {CORE: A}}})}
ANOTHER_NAMES = {"file": _file(other=A), "views": [NEW, OTHER_NAME]}


@cases(
    "given, uid, sure",
    {
        "the file has its places with this pod": (OLD_HAD, "old", True),
        "our answers before an ended pod's entry (K29)": (OLD_HAD | NEW_WAS_GIVEN, "new", False),
        "the file has them with another container": (ANOTHER_CONTAINERS, "new", False),
        "the file has them with a pod of another name": (ANOTHER_NAMES, "new", False),
        "a static pod (K34)": ({"file": _file(hash=A), "views": [MIRROR]}, "hash", True),
        "the API does not show it": (NOBODY | {"file": _file(static=A)}, "static", True),
    },
)
def test_a_list_entry_with_slots_is_the_pod_that_holds_them(
    given: dict[str, Any], uid: str, sure: bool
) -> None:
    assert _found([HOLDS_A], **given) == [(uid, HOLDS_A, sure)]


@cases(
    "entries, file",
    {
        "both show places": ([HOLDS_A, HOLDS_B], _file(old=A, new=B)),
        "one shows places, and goes first": ([HOLDS_A, EMPTY], _file(old=A)),
    },
)
def test_two_entries_of_a_name_are_two_pods_whatever_their_order(
    entries: list[ListedPod], file: Checkpoint
) -> None:
    for shuffled in itertools.permutations(entries):
        found = {uid: entry for uid, entry, _ in _found(shuffled, file=file)}
        assert found == dict(zip(("old", "new"), entries, strict=True))


@cases(
    "given, uid, sure",
    {
        "the only one": (ALONE | SHOWN, "new", True),
        "the only one, but List showed the name first": (ALONE, "new", False),
        "the older of two": (SHOWN, "old", False),
        "one that had something is over": (OLD_HAD, "new", False),
        "one that has ended is not admitted": (OLD_ENDED, "new", False),
        "one that has left the API goes behind (K20)": (OLD_LEFT | SHOWN, "new", False),
        "but not while it is being admitted": (OLD_LEFT | {"last_pod": OLD.id}, "old", False),
        "nor where the other has had something": (OLD_LEFT | NEW_HAD, "old", False),
        "it had something, and shows nothing now": (OLD_LEFT | SHOWN | OLD_HAD, "new", True),
        "the one that has left the API alone": (NOBODY | {"departed": [OLD]}, "old", False),
        "it had something: another may have come": (ALONE | SHOWN | NEW_HAD, "new", False),
        "nobody knows it: nothing to be wrong about": (NOBODY, "", True),
        "another name": ({"views": [OTHER_NAME]}, "", True),
        "other containers": ({"views": [OTHER_CONTAINERS]}, "", True),
        "a static pod": ({"views": [MIRROR]}, "hash", False),
        "the pod in service": (NOBODY | {"service": _service("static", A)}, "static", True),
    },
)
def test_an_entry_that_shows_nothing_is_the_likeliest_pod_of_its_name(
    given: dict[str, Any], uid: str, sure: bool
) -> None:
    assert _found([EMPTY], **given) == [(uid, EMPTY, sure)]


def test_the_current_pod_is_no_entry_with_other_containers() -> None:
    """It was deleted and created again, and the API has not shown the new one."""
    other = view("p", container("another"), uid="static")
    (found,) = _found([EMPTY], views=[], departed=[other], service=_service("static", A))
    assert found[0] == ""


def test_the_current_pod_is_not_one_of_two_nameless_entries() -> None:
    found = _found([EMPTY, EMPTY], views=[], service=_service("static", A))
    assert [each[0] for each in found] == ["", ""]


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
    entries: list[ListedPod], views: list[PodInfo], file: Checkpoint, data: st.DataObject
) -> None:
    found = identify(entries, file, (), pods_of(*views), confirmed=frozenset(), last_pod=None)
    assert sorted(repr(each.entry) for each in found) == sorted(map(repr, entries))
    taken = [each.uid for each in found if each.uid]
    assert len(taken) == len(set(taken))
    for each in found:
        assert each.id.key == each.entry.key
        assert each.info is None or kubelet_uid(each.info) == each.uid
    shuffled = pods_of(*data.draw(st.permutations(views)))
    again = identify(entries, file, (), shuffled, confirmed=frozenset(), last_pod=None)
    assert again == found
