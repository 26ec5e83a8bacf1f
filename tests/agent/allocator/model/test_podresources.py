import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import ListedPod, MatchedPod
from contract.resource import Resource
from simulator.node.identify import identify
from tests.agent.builders import (
    CORE,
    container,
    ids,
    listed,
    patient,
    pod_id,
    snapshot,
    view,
)

Owners = dict[tuple[Resource, str], PodId]
A, B = ids("GPU-0", range(3)), ids("GPU-0", range(3, 6))


def _owners(**by_uid: frozenset[str]) -> Owners:
    """Who holds what: UID of a pod ``p`` -> core places."""
    return {
        (CORE, device_id): pod_id("p", uid) for uid, held in by_uid.items() for device_id in held
    }


def _found(
    pods: list[ListedPod], views: list[PodView], owners: Owners | None = None
) -> list[tuple[str, ListedPod, bool]]:
    return [
        (each.pod.uid, each.listed, each.view is not None)
        for each in identify(snapshot(*pods), views, owners or {})
    ]


def test_an_entry_is_the_one_pod_of_its_name() -> None:
    pod, entry = view("p"), listed("p", c0=None)
    assert identify(snapshot(entry), [pod, view("q")], {}) == (MatchedPod(pod.id, entry, pod),)


def test_an_entry_that_only_the_kubelet_knows_has_a_name_and_no_uid() -> None:
    entry = listed("static-node1", c0=None)
    assert identify(snapshot(entry), [view("q")], {}) == (
        MatchedPod(PodId("default", "static-node1", ""), entry, None),
    )


def test_a_pod_of_the_same_name_in_another_namespace_is_another_pod() -> None:
    entry = ListedPod("other", "p", ())
    assert identify(snapshot(entry), [view("p")], {})[0].view is None


def test_places_the_ledger_does_not_know_leave_the_one_pod_of_the_name() -> None:
    assert _found([listed("p", c0={CORE: A})], [view("p", uid="u1")], {}) == [
        ("u1", listed("p", c0={CORE: A}), True)
    ]


def test_an_older_pod_that_is_still_stopping_is_not_its_successor() -> None:
    """The API shows only the new pod of the name; the entry holds what the old one was given."""
    entry = listed("p", c0={CORE: A})
    assert _found([entry], [view("p", uid="new")], _owners(old=A)) == [("old", entry, False)]


def test_of_two_pods_of_a_name_each_is_known_by_how_much_its_containers_hold() -> None:
    """Whom the ledger guessed is another then: nobody is given more or less than asked for."""
    holding, empty = listed("p", c0={CORE: A}), listed("p", c0=None)
    old = view("p", uid="old", deleting=True)
    new = view("p", container(cores=len(A)), uid="new")
    for entries in itertools.permutations([holding, empty]):
        for views in itertools.permutations([old, new]):
            assert _found(list(entries), list(views), _owners(old=A)) == [
                ("new", holding, True),
                ("old", empty, True),
            ]


def test_an_old_pod_and_its_successor_are_told_apart_by_what_they_hold() -> None:
    holding, empty = listed("p", c0={CORE: A}), listed("p", c0=None)
    old = view("p", container(cores=len(A)), uid="old", deleting=True)
    new = view("p", uid="new")
    for entries in itertools.permutations([holding, empty]):
        for views in itertools.permutations([old, new]):
            assert _found(list(entries), list(views), _owners(old=A)) == [
                ("new", empty, True),
                ("old", holding, True),
            ]


def test_without_any_holding_the_pod_that_is_not_stopping_is_taken_first() -> None:
    entry = listed("p", c0=None)
    ended = view("p", uid="a", terminal=True)
    stopping = view("p", uid="b", deleting=True)
    fresh = view("p", uid="c")
    for views in itertools.permutations([ended, stopping, fresh]):
        assert _found([entry], list(views)) == [("c", entry, True)]


def test_pods_alike_are_taken_in_line() -> None:
    entry = listed("p", c0=None)
    assert _found([entry], [view("p", uid="a", at=2), view("p", uid="b", at=1)]) == [
        ("b", entry, True)
    ]


def test_more_entries_than_pods_of_a_name_leave_some_unknown() -> None:
    one, two = listed("p", c0=None), listed("p", c1=None)
    assert _found([one, two], [view("p", uid="u1")]) == [("", two, False), ("u1", one, True)]


def test_what_is_held_by_name_alone_does_not_settle_who_it_is() -> None:
    entry = listed("p", c0={CORE: A})
    owners: Owners = {(CORE, each): pod_id("p", "") for each in A}
    assert _found([entry], [view("p", uid="u1")], owners) == [("u1", entry, True)]


def test_an_entry_with_places_of_two_pods_of_its_name_is_settled_by_none() -> None:
    entry = listed("p", c0={CORE: A | B})
    found = _found(
        [entry], [view("p", uid="u1", at=2), view("p", uid="u2", at=1)], _owners(u1=A, u2=B)
    )
    assert found == [("u2", entry, True)]


def test_places_of_a_pod_of_another_name_do_not_settle_who_it_is() -> None:
    entry = listed("p", c0={CORE: A})
    owners: Owners = {(CORE, each): pod_id("q", "u9") for each in A}
    assert _found([entry], [view("p", uid="u1")], owners) == [("u1", entry, True)]


_NAMES = st.sampled_from(["p", "q"])
_UIDS = st.sampled_from(["u1", "u2", "u3"])
_HELD = st.sampled_from([None, {CORE: A}, {CORE: B}, {CORE: A | B}])
_entries = st.lists(st.builds(lambda name, held: listed(name, c0=held), _NAMES, _HELD), max_size=4)
_views = st.lists(
    st.builds(
        lambda name, uid, at, deleting, terminal: view(
            name, uid=uid, at=at, deleting=deleting, terminal=terminal
        ),
        _NAMES,
        _UIDS,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda each: each.id.uid,
)
_given = st.dictionaries(
    st.sampled_from(sorted((CORE, each) for each in A | B)),
    st.builds(pod_id, _NAMES, _UIDS | st.just("")),
)


@patient
@given(_entries, _views, _given)
def test_every_entry_is_one_pod_and_no_pod_known_to_the_api_is_two_entries(
    entries: list[ListedPod], views: list[PodView], owners: Owners
) -> None:
    found = identify(snapshot(*entries), views, owners)
    assert sorted(map(repr, (each.listed for each in found))) == sorted(map(repr, entries))
    assert [each.pod for each in found] == sorted(each.pod for each in found)
    taken = [each.view.id for each in found if each.view is not None]
    assert len(taken) == len(set(taken))
    for each in found:
        assert each.pod.key == each.listed.key
        assert each.view is None or each.view.id == each.pod
        assert each.view is None or each.view in views


@patient
@given(_entries, _views, _given, st.data())
def test_the_order_in_which_pods_are_known_does_not_matter(
    entries: list[ListedPod], views: list[PodView], owners: Owners, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(views))
    assert identify(snapshot(*entries), views, owners) == identify(
        snapshot(*entries), shuffled, owners
    )


# --- which pod of a name an entry can be ------------------------------------------------


def test_an_entry_is_told_by_its_containers_that_ask_for_no_gpu_too() -> None:
    pod = replace(
        view("p", container("c", 30, 8)),
        mains=frozenset({"c", "plain"}),
        sidecars=frozenset({"proxy"}),
    )
    assert listed("p", c=None, plain=None).may_be(pod)
    assert listed("p", c=None, plain=None, proxy=None).may_be(pod)
    assert not listed("p", c=None).may_be(pod)
    assert not listed("p", c=None, plain=None, more=None).may_be(pod)


def test_of_two_pods_of_a_name_the_successor_is_the_entry_with_its_containers() -> None:
    """An agent that starts later knows the successor alone; its predecessor still ends (K20)."""
    new = replace(view("p", container("c", 30, 8), uid="new"), mains=frozenset({"plain", "c"}))
    old, mine = listed("p", c=None, more=None), listed("p", plain=None, c=None)
    found = identify(snapshot(old, mine), [new], {})
    assert {each.listed is mine: each.pod.uid for each in found} == {False: "", True: "new"}
