"""Pods at rest and pods in motion, told apart as if every entry were looked at each time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import ListedPod, MatchedPod, Snapshot
from agent.allocator.model.reconciliation import reconcile
from agent.allocator.resolver.pod_index import Observation, PodIndex
from agent.allocator.resolver.resolve import lacks, waits
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, PodDemand
from contract.resource import Resource
from simulator.node.identify import identify
from tests.agent.builders import (
    CORE,
    INIT,
    MAIN,
    MEMORY,
    container,
    hold,
    ids,
    listed,
    patient,
    pod_id,
    snapshot,
    view,
)
from tests.examples import share

GOT = Allocation(("GPU-0",), 50, 4, Evidence.WITNESS)
HELD = {CORE: ids("GPU-0", range(50)), MEMORY: ids("GPU-0", range(4))}
P = view("p")


def _plain(name: str = "p", *, uid: str | None = None) -> PodView:
    """A pod that asks for no GPU."""
    bare = view(name, uid=uid)
    return replace(bare, demand=replace(bare.demand, containers=()))


def _observe(pod_index: PodIndex, *entries: ListedPod) -> Observation:
    return pod_index.observe(snapshot(*entries), {})


def _settled(*views: PodView) -> tuple[PodIndex, list[ListedPod]]:
    """A pod index with *views* at rest, and their entries."""
    pod_index = PodIndex()
    pod_index.update(views)
    entries = [listed(each.id.name, c0=HELD) for each in views]
    pod_index.settle(_observe(pod_index, *entries).moving)
    return pod_index, entries


# --- what the API tells ---------------------------------------------------------------


def test_a_pod_is_known_by_its_uid() -> None:
    pod_index = PodIndex()
    pod_index.update([P])
    assert pod_index.view(P.id) is P
    assert pod_index.view(pod_id("p", "another")) is None
    assert pod_index.view(P.id._replace(name="q")) is None
    assert pod_index.views_of(("default", "p")) == (P,)
    assert pod_index.views_of(("default", "q")) == ()


@pytest.mark.parametrize(
    ("pod", "live", "unpublished", "hidden"),
    [
        (view("p"), True, True, False),
        (view("p", assigned=True), True, False, False),
        (view("p", assigned=True, annotated={"c0": GOT}), True, False, True),
        (view("p", annotated={"c0": GOT}), True, True, True),
        (view("p", terminal=True, annotated={"c0": GOT}), False, False, False),
        (view("p", deleting=True), True, True, False),
        (_plain(), True, False, False),
    ],
    ids=["waiting", "assigned", "annotated", "in part", "ended", "deleting", "plain"],
)
def test_what_the_api_shows_of_a_pod_goes_with_it(
    pod: PodView, live: bool, unpublished: bool, hidden: bool
) -> None:
    pod_index = PodIndex()
    pod_index.update([pod])
    assert (pod.id in pod_index.live, pod.id in pod_index.unpublished) == (live, unpublished)
    assert [each.id for each in pod_index.hidden] == ([pod.id] if hidden else [])
    pod_index.update([])
    assert (set(pod_index.live), set(pod_index.unpublished), pod_index.hidden) == (set(), set(), [])
    assert pod_index.views_of(pod.id.key) == ()
    assert pod_index.has_departed(pod.id)


def test_a_pod_at_rest_hides_nothing_but_what_its_init_containers_may_hold() -> None:
    """What is listed is in the ledger; ordinary init containers never are (K4)."""
    bare = view("p", annotated={"c0": GOT})
    init = view("q", container("i", kind=INIT), container("c0"), annotated={"c0": GOT})
    pod_index, _ = _settled(bare, init)
    assert [each.id.name for each in pod_index.hidden] == ["q"]
    pod_index.invalidate([bare.id])
    assert [each.id.name for each in pod_index.hidden] == ["p", "q"]


def test_two_pods_of_a_name_are_both_known_until_one_is_gone() -> None:
    old, new = view("p", uid="1"), view("p", uid="2")
    pod_index = PodIndex()
    pod_index.update([old])
    pod_index.update([old, new])
    assert list(pod_index.views_of(old.id.key)) == [old, new]
    pod_index.update([new])
    assert pod_index.views_of(old.id.key) == (new,)


# --- at rest, and stirred -------------------------------------------------------------


def test_a_pod_at_rest_is_listed_without_being_looked_at() -> None:
    pod_index, entries = _settled(P)
    observation = _observe(pod_index, *entries)
    assert observation.moving == ()
    assert observation.resting == {P.id}
    assert observation.pods == {P.id}


def test_a_new_pod_moves_beside_those_at_rest() -> None:
    pod_index, entries = _settled(P)
    new = listed("new", c0=None)
    observation = _observe(pod_index, *entries, new)
    assert [each.listed for each in observation.moving] == [new]
    assert observation.pods == {P.id, pod_id("new", "")}


def test_the_same_answer_looked_at_again_is_what_it_was() -> None:
    pod_index, entries = _settled(P)
    seen = snapshot(*entries, listed("new", c0=None))
    first = pod_index.observe(seen, {})
    assert pod_index.observe(seen, {}) == first
    pod_index.update([P, view("new")])
    (moving,) = pod_index.observe(seen, {}).moving
    assert moving.view is not None


# --- whom to ask the API for ----------------------------------------------------------


def test_listed_pods_the_api_has_not_told_of_are_named() -> None:
    pod_index, entries = _settled(P)
    pod_index.update([P, view("known")])
    observation = _observe(
        pod_index,
        *entries,
        listed("b", c0=None),
        listed("known", c0=None),
        listed("a", c0=HELD),
    )
    assert pod_index.unknown(observation) == [("default", "a"), ("default", "b")]


def test_an_ended_pod_whose_name_is_listed_is_named_once() -> None:
    over = view("over", terminal=True)
    half = [view("half", uid="1", terminal=True), view("half", uid="2")]
    pod_index = PodIndex()
    pod_index.update([over, *half, view("fine")])
    entries = [listed(name, c0=None) for name in ("over", "half", "fine", "unknown")]
    assert pod_index.ended(_observe(pod_index, *entries)) == [("default", "over")]
    assert pod_index.ended(_observe(pod_index, *entries)) == []


def test_a_name_that_ends_once_more_is_named_once_more() -> None:
    first, second = (view("p", uid=uid, terminal=True) for uid in "12")
    pod_index = PodIndex()
    for pods in ([first], [first, second]):
        pod_index.update(pods)
        assert pod_index.ended(_observe(pod_index, listed("p", c0=None))) == [("default", "p")]
    pod_index.update([])
    pod_index.update([first])
    assert pod_index.ended(_observe(pod_index, listed("p", c0=None))) == [("default", "p")]


# --- any history ----------------------------------------------------------------------

NAMES = ("a", "b")
UIDS = ("1", "2")  # after the name: a UID is never given twice
SHAPES: dict[str, tuple[ContainerDemand, ...]] = {
    "plain": (),
    "one": (container("c0", 30),),
    "init": (container("i", 30, kind=INIT), container("c0", 30)),
}
PLACES = {
    (name, part): {
        CORE: ids(f"GPU-{number}", range(30 * part, 30 * part + 30)),
        MEMORY: ids(f"GPU-{number}", range(4 * part, 4 * part + 4)),
    }
    for number, name in enumerate(NAMES)
    for part in (0, 1, 2)
}


@dataclass(frozen=True)
class Change:
    """The API shows a pod so, or no more."""

    name: str
    uid: str
    shape: str
    terminal: bool
    deleting: bool


@dataclass(frozen=True)
class Assign:
    """The agent assigns to a pod's container, or forgets the pod."""

    name: str
    uid: str
    places: Literal[0, 1] | None
    proven: bool


@dataclass(frozen=True)
class Look:
    """The kubelet is asked."""

    shown: list[tuple[str, str]]


# What an entry shows: nothing, cores only, or cores and memory. No two show the same places.
SHOWN = ("no container", "nothing", "cores 2", "all 0", "all 1")
Step: TypeAlias = Change | Assign | Look
_names, _uids = st.sampled_from(NAMES), st.sampled_from(UIDS)


def _steps(shapes: Iterable[str], *, twice: bool) -> st.SearchStrategy[list[Step]]:
    """Histories of pods of some shapes; *twice*: whether ``List`` may show a name twice."""
    shape = st.sampled_from([*shapes, "gone"])
    entry = st.tuples(_names, st.sampled_from(SHOWN))
    entries = st.lists(
        entry, max_size=3, unique_by=(lambda each: each) if twice else (lambda each: each[0])
    )
    each: st.SearchStrategy[Step] = st.one_of(
        st.builds(Change, _names, _uids, shape, st.booleans(), st.booleans()),
        st.builds(
            Assign,
            _names,
            st.sampled_from([*UIDS, ""]),
            st.sampled_from([0, 1, None]),
            st.booleans(),
        ),
        st.builds(Look, entries),
    )
    return st.lists(each, max_size=12)


class Owner:
    """Does with a pod index what its owner does with it, and looks at everything each time."""

    def __init__(self) -> None:
        self.pod_index, self.ledger = PodIndex(), Ledger()
        self.views: dict[PodId, PodView] = {}
        self.entries: dict[tuple[str, str], ListedPod] = {}

    def do(self, step: Step) -> None:
        match step:
            case Change():
                self.change(step)
            case Assign():
                self.assign(step)
            case Look():
                self.look([self.entry(*each) for each in step.shown])

    def entry(self, name: str, shown: str) -> ListedPod:
        """Give an entry; what was shown before is the same object again."""
        containers: dict[str, Mapping[Resource, frozenset[str]]] = {}
        if shown != "no container":
            held = PLACES[name, int(shown[-1])] if shown[-1].isdigit() else {}
            containers["c0"] = {CORE: held[CORE]} if shown.startswith("cores") else held
        return self.entries.setdefault((name, shown), listed(name, **containers))

    def change(self, step: Change) -> None:
        if step.shape == "gone":
            self.views.pop(pod_id(step.name, step.name + step.uid), None)
            return
        bare = view(
            step.name, uid=step.name + step.uid, terminal=step.terminal, deleting=step.deleting
        )
        self.views[bare.id] = replace(bare, demand=PodDemand(SHAPES[step.shape]))

    def assign(self, step: Assign) -> None:
        pod = pod_id(step.name, step.uid and step.name + step.uid)
        if step.places is None:
            self.ledger.release_pod(pod)
            return
        ref = ContainerRef(pod, "c0")
        for resource, places in PLACES[step.name, step.places].items():
            self.ledger.give_way(ref, resource, places)
            holding = Holding(places, Evidence.WITNESS, proven=step.proven)
            self.ledger.assign(ref, MAIN, resource, holding)

    def look(self, entries: Sequence[ListedPod]) -> None:
        seen, views = Snapshot(tuple(entries)), tuple(self.views.values())
        self.pod_index.update(views)
        self.pod_index.invalidate(self.ledger.take_changed())
        observation = self.pod_index.observe(seen, self.ledger.owners)
        self.compare(observation, identify(seen, views, self.ledger.owners))
        reconcile(
            self.ledger, observation.moving, resting=observation.resting, live=self.pod_index.live
        )
        self.pod_index.invalidate(self.ledger.take_changed())
        self.pod_index.settle(
            each
            for each in observation.moving
            if each.view is not None
            and not each.view.terminal
            and not waits(each, lambda _pod, _container, _resource: False)
            and self.ledger.agrees(each)
        )

    def compare(self, observation: Observation, everything: Sequence[MatchedPod]) -> None:
        resting = [each for each in everything if each.pod in observation.resting]
        assert {each.pod for each in resting} == set(observation.resting)
        moving = [each for each in everything if each not in resting]
        assert self.told(observation.moving) == self.told(moving)
        for each in observation.moving:
            if each.view is not None and self.pod_index.has_departed(each.pod):
                assert each.view.id == each.pod
                assert each.pod.key == each.listed.key
                assert each.listed.may_be(each.view) or each.identified
        for each in resting:
            assert not lacks(each)
            assert self.ledger.agrees(each)
            assert each.view is self.pod_index.view(each.pod)

    def told(self, found: Iterable[MatchedPod]) -> list[MatchedPod]:
        """Without what is remembered of pods that have left the API."""
        plain = (
            MatchedPod(PodId(*each.pod.key, ""), each.listed, None)
            if self.pod_index.has_departed(each.pod)
            else replace(each, earlier=())
            for each in found
        )
        return sorted(plain, key=lambda each: (each.pod, str(each.listed)))


def _follow(steps: Iterable[Step]) -> Owner:
    owner = Owner()
    for step in steps:
        owner.do(step)
    return owner


@settings(patient, max_examples=share(120))
@given(steps=_steps(SHAPES, twice=False))
def test_moving_and_resting_together_are_what_looking_at_everything_gives(
    steps: Sequence[Step],
) -> None:
    _follow(steps)


@settings(patient, max_examples=share(120))
@given(steps=_steps(["one", "init"], twice=True))
def test_so_they_are_where_list_shows_a_name_twice(steps: Sequence[Step]) -> None:
    _follow(steps)


@pytest.mark.parametrize("second", ["nothing", "no container"], ids=["equal", "another"])
def test_entries_of_a_name_are_told_apart_as_they_are_listed(second: str) -> None:
    """A pod without GPUs that is still stopping, and its successor."""
    first = ("a", "nothing")
    owner = _follow([Change("a", "1", "plain", terminal=False, deleting=False), Look([first])])
    assert owner.pod_index.observe(snapshot(owner.entry(*first)), {}).moving == ()
    owner.do(Look([first, ("a", second)]))


def test_pods_at_rest_stay_so_in_such_histories() -> None:
    """What the property is worth: it speaks of pods at rest."""
    shown = [("a", "all 0"), ("b", "all 1")]
    changes = [
        Change(name, "1", shape, terminal=False, deleting=False)
        for name, shape in (("a", "one"), ("b", "one"))
    ]
    owner = _follow([*changes, Look(shown), Look(shown)])
    seen = snapshot(*(owner.entry(*each) for each in shown))
    assert owner.pod_index.observe(seen, {}).resting == {pod_id("a", "a1"), pod_id("b", "b1")}


# --- pods that have left the API before they leave List (K20) ------------------------


def _in_motion(
    pod_index: PodIndex, *entries: ListedPod, ledger: Ledger | None = None
) -> list[MatchedPod]:
    return list(pod_index.observe(snapshot(*entries), ledger.owners if ledger else {}).moving)


def test_a_listed_pod_that_has_left_the_api_is_known_by_what_it_was() -> None:
    pod = view("p", container("gpu"))
    pod_index = PodIndex()
    pod_index.update([pod])
    entry = listed("p", gpu=None, plain=None)
    _in_motion(pod_index, entry)
    pod_index.update([])
    assert _in_motion(pod_index, entry) == [MatchedPod(pod.id, entry, pod, identified=False)]


def test_it_is_identified_by_what_it_holds() -> None:
    pod, ledger = view("p", container("gpu")), Ledger()
    hold(ledger, pod.id, "gpu", CORE, ids("GPU-0", range(50)))
    pod_index = PodIndex()
    pod_index.update([pod])
    pod_index.update([])
    entry = listed("p", gpu={CORE: ids("GPU-0", range(50))}, plain=None)
    assert _in_motion(pod_index, entry, ledger=ledger) == [MatchedPod(pod.id, entry, pod)]


def test_it_is_identified_in_the_list_of_which_the_api_says_that_nobody_has_the_name() -> None:
    pod, pod_index = view("p"), PodIndex()
    pod_index.update([pod])
    pod_index.update([])
    entry = listed("p", c0=None)
    seen = snapshot(entry)
    pod_index.observe(seen, {})
    pod_index.alone([pod.id.key], seen)
    assert [each.identified for each in pod_index.observe(seen, {}).moving] == [True]
    assert [each.identified for each in pod_index.observe(snapshot(entry), {}).moving] == [False]


def test_it_is_kept_until_it_has_left_the_record() -> None:
    pod, pod_index = view("p"), PodIndex()
    pod_index.update([pod])
    pod_index.update([])
    _in_motion(pod_index)  # the kubelet may not have come to it yet
    assert pod_index.has_departed(pod.id)
    _in_motion(pod_index, listed("p", c0=None))
    _in_motion(pod_index)
    assert not pod_index.has_departed(pod.id)
    assert [each.view for each in _in_motion(pod_index, listed("p", c0=None))] == [None]


def test_one_that_was_listed_before_it_left_the_api_is_forgotten_with_the_next_list() -> None:
    pod, pod_index = view("p"), PodIndex()
    pod_index.update([pod])
    _in_motion(pod_index, listed("p", c0=None))
    pod_index.update([])
    _in_motion(pod_index)
    assert not pod_index.has_departed(pod.id)


def test_its_successor_of_another_shape_is_told_apart() -> None:
    old, new = view("p", container("c0"), uid="1"), view("p", container("c1"), uid="2")
    pod_index = PodIndex()
    pod_index.update([old])
    pod_index.update([new])
    first, second = listed("p", c0=None, plain=None), listed("p", c1=None)
    found = _in_motion(pod_index, first, second)
    assert [(each.pod, each.listed) for each in found] == [(old.id, first), (new.id, second)]
    assert [each.pod for each in _in_motion(pod_index, first)] == [old.id]


def test_a_pod_that_is_back_is_what_the_api_shows() -> None:
    pod, pod_index = view("p"), PodIndex()
    pod_index.update([pod])
    pod_index.update([])
    pod_index.update([again := replace(pod, assigned=True)])
    assert not pod_index.has_departed(pod.id)
    assert pod_index.view(pod.id) is again


def test_pods_that_were_never_listed_are_remembered_up_to_a_number() -> None:
    pod_index = PodIndex()
    pods = [view(f"p{each}") for each in range(600)]
    pod_index.update(pods)
    pod_index.update([])
    kept = [each for each in pods if pod_index.has_departed(each.id)]
    assert 256 <= len(kept) < 600
