"""The pod of each entry of ``List`` (R5), which has names and no UIDs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import identify, kubelet_uid
from agent.allocator.interfaces import Checkpoint, HeldSlots, ListedPod
from contract.allocation import Evidence
from placement.pods import PodId, PodInfo
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    SIDECAR,
    cases,
    container,
    ids,
    listed,
    patient,
    pod_id,
    pods_of,
    view,
)

A, B = ids("GPU-0", range(3)), ids("GPU-0", range(3, 6))
HOLDS_A, EMPTY = (listed("p", c0=held) for held in ({CORE: A}, None))
OLD = view("p", container("c0", 3, 1), uid="old", at=1)
NEW = view("p", container("c0", 3, 1), uid="new", at=2)
OTHER_NAME = view("q", container("c0", 3, 1), uid="other")
OTHER_CONTAINERS = view("p", container("another"), uid="static")
MIRROR = replace(view("p", container("c0", 3, 1), uid="mirror"), runtime_uid="hash")


def _checkpoint(**held: frozenset[str]) -> Checkpoint:
    return Checkpoint({uid: {"c0": {CORE: slots}} for uid, slots in held.items()})


def _current(uid: str, held: frozenset[str]) -> CurrentPod:
    assignment = Assignment("c0", CORE, held, Evidence.WITNESS, allocated=True)
    return CurrentPod(pod_id("p", uid), uid, assignments=(assignment,))


def _found(
    entries: Sequence[ListedPod],
    *,
    checkpoint: Checkpoint | None = None,
    current: CurrentPod | None = None,
    views: Sequence[PodInfo] = (OLD, NEW),
    departed: Sequence[PodInfo] = (),
    confirmed: Collection[str] = (),
    last_pod: PodId | None = None,
) -> list[tuple[str, ListedPod, bool]]:
    """Return the UID of each entry's pod, the entry, and whether it is sure."""
    found = identify(
        entries,
        checkpoint or Checkpoint(),
        () if current is None else (current,),
        pods_of(*views, departed=departed),
        confirmed=frozenset(confirmed),
        last_pod=last_pod,
    )
    return [(each.uid, each.entry, each.sure) for each in found]


ALONE: dict[str, Any] = {"views": [NEW]}
OLD_LEFT: dict[str, Any] = {"views": [NEW], "departed": [OLD]}
NO_PODS: dict[str, Any] = {"views": []}
CONFIRMED: dict[str, Any] = {"confirmed": ["old", "new"]}
OLD_HAD, NEW_HAD = {"checkpoint": _checkpoint(old=A)}, {"checkpoint": _checkpoint(new=A)}
CURRENT = {"current": _current("static", A)}
NEW_WAS_ASSIGNED = {"current": _current("new", A)}
OLD_ENDED = {"views": [replace(OLD, terminal=True), NEW]}
ANOTHER_CONTAINERS = ALONE | {"checkpoint": Checkpoint({"old": {"c1": {CORE: A}}})}
ANOTHER_NAMES = {"checkpoint": _checkpoint(other=A), "views": [NEW, OTHER_NAME]}


@cases(
    "given, uid, sure",
    {
        "the checkpoint has its slots at this pod": (OLD_HAD, "old", True),
        "our assignments before an ended pod's entry (K29)": (
            OLD_HAD | NEW_WAS_ASSIGNED,
            "new",
            False,
        ),
        "the checkpoint has them at another container": (ANOTHER_CONTAINERS, "new", False),
        "the checkpoint has them at a pod of another name": (ANOTHER_NAMES, "new", False),
        "a static pod (K34)": (
            {"checkpoint": _checkpoint(hash=A), "views": [MIRROR]},
            "hash",
            True,
        ),
        "the API does not show it": (
            NO_PODS | {"checkpoint": _checkpoint(static=A)},
            "static",
            True,
        ),
    },
)
def test_a_list_entry_with_slots_is_the_pod_that_holds_them(
    given: dict[str, Any], uid: str, sure: bool
) -> None:
    assert _found([HOLDS_A], **given) == [(uid, HOLDS_A, sure)]


@cases(
    "given, uid, sure",
    {
        "the only one": (ALONE | CONFIRMED, "new", True),
        "the only one, but List showed the name first": (ALONE, "new", False),
        "the older of two": (CONFIRMED, "old", False),
        "one that had something has ended": (OLD_HAD, "new", False),
        "one that has ended is not admitted": (OLD_ENDED, "new", False),
        "one that has left the API comes last (K20)": (OLD_LEFT | CONFIRMED, "new", False),
        "but not while it is being admitted": (OLD_LEFT | {"last_pod": OLD.id}, "old", False),
        "nor where the other has had something": (OLD_LEFT | NEW_HAD, "old", False),
        "it had something, and shows nothing now": (OLD_LEFT | CONFIRMED | OLD_HAD, "new", True),
        "the one that has left the API alone": (NO_PODS | {"departed": [OLD]}, "old", False),
        "it had something: another may have come": (ALONE | CONFIRMED | NEW_HAD, "new", False),
        "no pod of its name is known": (NO_PODS, "", True),
        "another name": ({"views": [OTHER_NAME]}, "", True),
        "other containers": ({"views": [OTHER_CONTAINERS]}, "", True),
        "a static pod": ({"views": [MIRROR]}, "hash", False),
        "the current pod": (NO_PODS | CURRENT, "static", True),
        "the current pod's name was created again, and has not been shown": (
            NO_PODS | CURRENT | {"departed": [OTHER_CONTAINERS]},
            "",
            True,
        ),
    },
)
def test_an_entry_without_slots_is_the_likeliest_pod_of_its_name(
    given: dict[str, Any], uid: str, sure: bool
) -> None:
    assert _found([EMPTY], **given) == [(uid, EMPTY, sure)]


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
_checkpoints = st.dictionaries(_UIDS | st.just("unknown"), st.sampled_from([A, B])).map(
    lambda held: _checkpoint(**held)
)


@patient
@given(_entries, _views, _checkpoints, st.data())
def test_every_entry_is_one_pod_in_any_order_and_no_pod_is_two_entries(
    entries: list[ListedPod], views: list[PodInfo], checkpoint: Checkpoint, data: st.DataObject
) -> None:
    found = identify(entries, checkpoint, (), pods_of(*views), confirmed=frozenset(), last_pod=None)
    assert sorted(repr(each.entry) for each in found) == sorted(map(repr, entries))
    taken = [each.uid for each in found if each.uid]
    assert len(taken) == len(set(taken))
    for each in found:
        assert each.id.key == each.entry.key
        assert each.info is None or kubelet_uid(each.info) == each.uid
    shuffled = pods_of(*data.draw(st.permutations(views)))
    again = identify(entries, checkpoint, (), shuffled, confirmed=frozenset(), last_pod=None)
    assert again == found


# --- which pod of a name an entry can be ----------------------------------------------

NOTHING: HeldSlots = {}
WITH_PLAIN = replace(
    view("p", container("c", 30, 8)), mains=frozenset({"c", "plain"}), sidecars=frozenset({"proxy"})
)
WITHOUT_NAMES = view(
    "p", container("i", kind=INIT), container("s", kind=SIDECAR), container("c", 30, 8)
)


@pytest.mark.parametrize(
    ("pod", "names", "may_be"),
    [
        (WITH_PLAIN, "c plain", True),  # an older kubelet
        (WITH_PLAIN, "c plain proxy", True),  # a newer one
        (WITH_PLAIN, "c", False),
        (WITH_PLAIN, "c plain more", False),
        (WITH_PLAIN, "plain proxy", False),
        (WITHOUT_NAMES, "s c other", True),
        (WITHOUT_NAMES, "i c", False),
    ],
)
def test_an_entry_may_be_a_pod_if_it_has_the_known_containers_of_the_pod(
    pod: PodInfo, names: str, may_be: bool
) -> None:
    """Containers without GPUs count, too; ordinary init containers are not listed (K4)."""
    assert listed("p", **dict.fromkeys(names.split(), NOTHING)).may_be(pod) is may_be


@pytest.mark.parametrize(
    ("held", "contradicted"),
    [
        ({}, False),
        ({CORE: ids("GPU-0", range(30))}, False),
        ({CORE: ids("GPU-0", range(30)), MEMORY: ids("GPU-0", range(8))}, False),
        ({CORE: ids("GPU-0", range(29))}, True),
        ({MEMORY: ids("GPU-0", range(9))}, True),
    ],
)
def test_an_entry_with_another_count_than_requested_contradicts_its_pod(
    held: HeldSlots, contradicted: bool
) -> None:
    shown: Mapping[str, HeldSlots] = {"c": held}
    assert listed("p", **shown).contradicts(WITH_PLAIN) is contradicted
    assert not listed("p", other=held).contradicts(WITH_PLAIN)
