"""Which container is asking; docs/kubelet-facts.md has the facts K1 to K8."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import MatchedPod
from agent.allocator.resolver.resolve import (
    AdmissionHistory,
    Ask,
    Resolution,
    Served,
    next_containers,
    resolve,
)
from agent.errors import ResolutionError
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of
from tests.agent.builders import (
    CORE,
    INIT,
    MAIN,
    MEMORY,
    SIDECAR,
    container,
    identified,
    ids,
    listed,
    patient,
    pod_id,
    view,
)

Got = tuple[str, str, Resource]
"""Pod name, container name, resource."""

SOME = ids("GPU-0", range(50))
MORE = ids("GPU-0", range(50, 100))
BLOCKS = ids("GPU-0", range(4))


def _served(*got: Got) -> Served:
    """The ledger: exactly these got their places."""
    return lambda pod, name, resource: (pod.name, name, resource) in got


Shown = Mapping[str, Mapping[Resource, frozenset[str]] | None]
"""Container -> what it holds."""


def _entries(
    views: Sequence[PodView], shown: Mapping[str, Shown] | None
) -> list[MatchedPod] | None:
    """What ``List`` shows by pod name; of a pod without a view only the kubelet knows."""
    known = {each.id.name: each for each in views}
    if shown is None:
        return None
    return [
        identified(known.get(name, pod_id(name, "")), listed(name, **containers))
        for name, containers in shown.items()
    ]


def _refusal(
    ask: Ask,
    views: Sequence[PodView],
    shown: Mapping[str, Shown] | None = None,
) -> str:
    with pytest.raises(ResolutionError) as caught:
        resolve(ask, views=views, served=_served(), listed=_entries(views, shown))
    return str(caught.value)


WITNESS, ORDER = Evidence.WITNESS, Evidence.ORDER
CORES, MEM = Ask(CORE, 50), Ask(MEMORY, 4)
FULL = {CORE: SOME, MEMORY: BLOCKS}
BEGUN = {CORE: SOME}
LACKS: Shown = {"c0": None}
RECORD = Allocation(("GPU-0",), 50, 4, WITNESS)


@dataclass(frozen=True)
class Case:
    """Who is known, what ``List`` shows, and who is asking.

    Attributes:
        pods: as the API shows them.
        shown: pod name -> containers; ``None`` where there is no witness.
        asking: pod and container, with a space between.
        evidence: by which that is settled.
        ask: 50 cores unless told.
        got: what the ledger has.
        history: by name of a field of ``AdmissionHistory``: the names of pods.
    """

    pods: Sequence[PodView]
    shown: Mapping[str, Shown] | None
    asking: str
    evidence: Evidence
    ask: Ask = CORES
    got: Sequence[Got] = ()
    history: Mapping[str, str] = field(default_factory=dict)


A, B = view("a", at=1), view("b", at=2)
TWO = view("p", container("c0"), container("c1"))
SIDE = view("p", container("side", kind=SIDECAR), container("c0"))
CARD = view("p", container("c0", 100, 0), container("c1"))
WITH_INIT = view("p", container("init", kind=INIT), container("c0"))
OTHER_INIT = view("p", container("init", 30, 2, kind=INIT), container("c0"))
INIT_GOT = [("p", "init", CORE), ("p", "init", MEMORY)]
SERVED = view(
    "a",
    container("init", kind=INIT),
    container("c0"),
    at=9,
    annotated={"init": RECORD, "c0": RECORD},
)
BOTH = {"a": LACKS, "b": LACKS}
B_BEGUN = {"a": LACKS, "b": {"c0": BEGUN}}
SMALL, TINY = view("b", container("c0", 10, 4)), view("b", container("c0", 10, 1))

ASKING = {
    "the one that lacks": Case([A, B], {"a": {"c0": FULL}, "b": LACKS}, "b c0", WITNESS),
    "one not listed is not admitted yet": Case([A, B], {"b": LACKS}, "b c0", WITNESS),
    "containers come in order": Case([TWO], {"p": {"c0": FULL, "c1": None}}, "p c1", WITNESS),
    "the other resource, cores first": Case(
        [TWO], {"p": {"c0": BEGUN, "c1": None}}, "p c0", WITNESS, MEM
    ),
    "the other resource, memory first": Case(
        [TWO], {"p": {"c0": {MEMORY: BLOCKS}, "c1": None}}, "p c0", WITNESS
    ),
    "List goes before the ledger": Case(
        [TWO],
        {"p": {"c0": None, "c1": None}},
        "p c0",
        WITNESS,
        got=[("p", "c0", CORE), ("p", "c0", MEMORY)],
    ),
    "a sidecar": Case([SIDE], {"p": {"side": None, "c0": None}}, "p side", WITNESS),
    "after a sidecar": Case([SIDE], {"p": {"side": FULL}}, "p c0", WITNESS),
    "an ended pod is not": Case([view("a", terminal=True), B], BOTH, "b c0", WITNESS),
    "one of another size is not": Case([A, SMALL], BOTH, "a c0", WITNESS),
    "whole cards without memory: cores": Case(
        [CARD], {"p": {"c0": {CORE: SOME | MORE}, "c1": None}}, "p c1", WITNESS
    ),
    "whole cards without memory: memory": Case(
        [CARD], {"p": {"c0": {CORE: SOME | MORE}, "c1": None}}, "p c1", WITNESS, MEM
    ),
    # K8: List keeps rejected pods
    "one was rejected": Case([A, B], BOTH, "a c0", WITNESS, history={"rejected": "b"}),
    "of several the newest": Case([A, B], BOTH, "b c0", ORDER),
    "all were rejected": Case([A, B], BOTH, "b c0", ORDER, history={"rejected": "ab"}),
    "the only one was rejected": Case(
        [A], {"a": LACKS}, "a c0", WITNESS, history={"rejected": "a"}
    ),
    "begun, another was rejected": Case(
        [A, B], B_BEGUN, "b c0", WITNESS, MEM, history={"rejected": "a"}
    ),
    "begun, or another": Case([A, B], B_BEGUN, "b c0", ORDER, MEM),
    "begun, though it counts as rejected": Case(
        [A, B], B_BEGUN, "b c0", ORDER, MEM, history={"rejected": "b"}
    ),
    "a newcomer before one that has begun": Case(
        [A, B], B_BEGUN, "a c0", WITNESS, MEM, history={"newcomers": "a"}
    ),
    "begun and over (K21)": Case(
        [A, B], B_BEGUN, "a c0", WITNESS, MEM, history={"admission_over": "b"}
    ),
    "a newcomer that cannot be asking": Case(
        [A, TINY],
        {"a": {"c0": BEGUN}, "b": LACKS},
        "a c0",
        WITNESS,
        MEM,
        history={"newcomers": "b"},
    ),
    "refused, whatever it holds": Case(
        [A, B], B_BEGUN, "a c0", WITNESS, MEM, history={"refused": "b", "rejected": "a"}
    ),
    "a complete annotation is served (K4)": Case(
        [SERVED, B], {"a": {"c0": FULL}, "b": LACKS}, "b c0", WITNESS
    ),
    # K4, K7: init containers
    "an init container comes first": Case([WITH_INIT], {"p": LACKS}, "p init", WITNESS),
    "init: the ledger, cores": Case([WITH_INIT], {"p": LACKS}, "p init", WITNESS, got=INIT_GOT[1:]),
    "init: the ledger, memory": Case(
        [WITH_INIT], {"p": LACKS}, "p init", WITNESS, MEM, got=INIT_GOT[:1]
    ),
    "after an init container": Case([WITH_INIT], {"p": LACKS}, "p c0", WITNESS, got=INIT_GOT),
    "init served before the start": Case([OTHER_INIT], {"p": LACKS}, "p c0", WITNESS),
    "init not served before": Case([OTHER_INIT], {"p": LACKS}, "p init", WITNESS, Ask(CORE, 30)),
    "found at the start: two may be": Case(
        [WITH_INIT], {"p": LACKS}, "p init", ORDER, history={"there_at_start": "p"}
    ),
    "found at the start: size tells": Case(
        [OTHER_INIT], {"p": LACKS}, "p c0", WITNESS, MEM, history={"there_at_start": "p"}
    ),
    "found at the start: answered since": Case(
        [WITH_INIT], {"p": LACKS}, "p c0", WITNESS, got=INIT_GOT, history={"there_at_start": "p"}
    ),
    "a later container has begun": Case([OTHER_INIT], {"p": {"c0": BEGUN}}, "p c0", WITNESS, MEM),
    "handed on places": Case([A, B], BOTH, "a c0", WITNESS, Ask(CORE, 50, A.id)),
    "blind: handed on places": Case([A, B], None, "b c0", ORDER, Ask(CORE, 50, B.id)),
    # no witness
    "blind: the first in the queue": Case([B, A], None, "a c0", ORDER),
    "blind: even a single pod is a guess": Case([A], None, "a c0", ORDER),
    "blind: in progress, other resource": Case(
        [A, B], None, "b c0", ORDER, MEM, got=[("b", "c0", CORE)]
    ),
    "blind: in progress, next container": Case(
        [A, view("b", container("c0"), container("c1"), at=2)],
        None,
        "b c1",
        ORDER,
        got=[("b", "c0", CORE), ("b", "c0", MEMORY)],
    ),
    "blind: in progress, another size": Case(
        [A, SMALL], None, "a c0", ORDER, got=[("b", "c0", MEMORY)]
    ),
    "blind: an ended one is not": Case([view("a", at=1, terminal=True), B], None, "b c0", ORDER),
    "blind: a served one is not": Case(
        [A, B], None, "b c0", ORDER, got=[("a", "c0", CORE), ("a", "c0", MEMORY)]
    ),
    "blind: an annotated one is not": Case(
        [view("a", at=1, annotated={"c0": RECORD}), B], None, "b c0", ORDER
    ),
    # pods only the kubelet knows
    "a known pod before an unknown": Case([B], BOTH, "b c0", ORDER),
    "the unknown one was rejected": Case([B], BOTH, "b c0", WITNESS, history={"rejected": "a"}),
    "the unknown one is over": Case([B], BOTH, "b c0", WITNESS, history={"admission_over": "a"}),
    "the known one is a newcomer": Case([B], BOTH, "b c0", WITNESS, history={"newcomers": "b"}),
    "a known one begun, an unknown": Case([B], B_BEGUN, "b c0", ORDER, MEM),
    "unknown: the first that lacks": Case(
        [], {"a": {"c0": FULL, "c1": None, "c2": None}}, "a c1", ORDER, Ask(CORE, 30)
    ),
    "unknown: handed on places": Case([], BOTH, "b c0", ORDER, Ask(CORE, 50, pod_id("b", ""))),
}


@pytest.mark.parametrize("case", ASKING.values(), ids=ASKING)
def test_who_is_asking(case: Case) -> None:
    entries = _entries(case.pods, case.shown)
    ids_of = {each.pod.name: each.pod for each in entries or ()}
    history = {
        name: frozenset(ids_of.get(each, pod_id(each)) for each in pods)
        for name, pods in case.history.items()
    }
    found = resolve(
        case.ask,
        views=case.pods,
        served=_served(*case.got),
        listed=entries,
        history=AdmissionHistory(**history),
    )
    assert f"{found.pod.name} {found.container.name}" == case.asking
    assert found.evidence is case.evidence


def test_of_several_that_may_be_asking_the_others_are_told() -> None:
    pods = [view("a", at=1), view("b", at=2), view("c", at=3)]
    entries = _entries(pods, {each.id.name: LACKS for each in pods})
    found = resolve(CORES, views=pods, served=_served(), listed=entries)
    assert [each.pod.name for each in (found, *found.rivals)] == ["c", "b", "a"]
    blind = resolve(CORES, views=pods, served=_served(), listed=None)
    assert [each.pod.name for each in (blind, *blind.rivals)] == ["a", "b", "c"]


@patient
@given(data=st.data())
def test_whoever_is_named_asks_for_it_and_is_not_refused_and_a_newcomer_goes_first(
    data: st.DataObject,
) -> None:
    """In any state of List, of refusals, of pods that were rejected and of newcomers."""
    sizes = st.sampled_from([10, 50])
    pods = [view(f"p{each}", container("c0", data.draw(sizes), 4), at=each) for each in range(4)]
    some = st.sets(st.sampled_from([each.id for each in pods]), max_size=3)
    entries = []
    for pod in pods:
        held = data.draw(st.sampled_from([{}, {CORE: SOME}, {MEMORY: BLOCKS}]))
        entries.append(identified(pod, listed(pod.id.name, c0=held)))
    rejected, admission_over, refused, newcomers = (frozenset(data.draw(some)) for _ in range(4))
    ask = Ask(CORE, 50)
    can = {
        each.pod
        for each in entries
        if each.view is not None
        and each.view.demand.containers[0].demand.cores == 50
        and not each.listed.held("c0", CORE)
        and each.pod not in refused
    }
    try:
        found = resolve(
            ask,
            views=pods,
            served=_served(),
            listed=entries,
            history=AdmissionHistory(rejected, admission_over, refused, newcomers),
        )
    except ResolutionError:
        assert not can
        return
    named = {found.pod, *(each.pod for each in found.rivals)}
    assert named <= can
    assert (found.evidence is Evidence.WITNESS) == (len(named) == 1)
    if can & newcomers:
        assert named <= newcomers


def test_order_is_bind_then_admission_then_creation_then_uid() -> None:
    in_line = [
        view("h", at=1, bound="1", admitted="1", created=1, uid="1"),
        view("g", at=1, bound="1", admitted="1", created=1, uid="2"),
        view("f", at=1, bound="1", admitted="1", created=2, uid="1"),
        view("e", at=1, bound="1", admitted="2", created=1, uid="1"),
        view("d", at=1, bound="2", admitted="1", created=1, uid="1"),
        view("c", at=2, bound="1", admitted="1", created=1, uid="1"),
    ]
    for place, first in enumerate(in_line):
        left = in_line[place:]
        found = resolve(CORES, views=left[::-1], served=_served(), listed=None)
        assert found.pod == first.id


def test_pods_alike_in_everything_but_their_name_are_taken_by_name() -> None:
    pods = [view("b", uid=""), view("a", uid="")]
    for views in (pods, pods[::-1]):
        assert resolve(CORES, views=views, served=_served(), listed=None).pod.name == "a"


@pytest.mark.parametrize(
    ("ask", "shown", "expected"),
    [
        (CORES, {"a": LACKS, "b": LACKS}, ContainerDemand("c0", MAIN, 0, Demand(50, 1))),
        (
            CORES,
            {"a": {"c0": None, "c1": {MEMORY: BLOCKS}, "c2": None}},
            ContainerDemand("c1", MAIN, 0, Demand(50, 4)),
        ),
        (MEM, {"a": LACKS}, ContainerDemand("c0", MAIN, 0, Demand(1, 4))),
    ],
    ids=["no known pod fits", "the container that has begun", "memory first: a share"],
)
def test_what_a_pod_asks_for_that_only_the_kubelet_knows(
    ask: Ask, shown: Mapping[str, Shown], expected: ContainerDemand
) -> None:
    entries = _entries([SMALL], shown)
    found = resolve(ask, views=[SMALL], served=_served(), listed=entries)
    assert found == Resolution(pod_id("a", ""), expected, ORDER)


# --- nothing fits --------------------------------------------------------------------


def test_a_refusal_says_what_was_asked_for_and_what_waits() -> None:
    pods = [
        view("b", container("c0", 10, 4)),
        view("a", container("init", 20, 1, kind=INIT), container("c0", 30, 2)),
        view("done", terminal=True),
    ]
    expected = (
        "50 places of core were asked for, but no waiting container asks for that; waiting: "
        "default/a container c0 (cores 30, memory 2); "
        "default/a container init (cores 20, memory 1); "
        "default/b container c0 (cores 10, memory 4)"
    )
    assert _refusal(CORES, pods) == expected
    assert _refusal(CORES, pods, {each.id.name: LACKS for each in pods}) == expected


def test_a_refusal_names_five_and_counts_the_rest() -> None:
    pods = [view(f"p{index}", container("c0", 10, 4)) for index in range(7)]
    assert _refusal(Ask(MEMORY, 50), pods) == (
        "50 places of memory were asked for, but no waiting container asks for that; waiting: "
        + "; ".join(f"default/p{index} container c0 (cores 10, memory 4)" for index in range(5))
        + " and 2 more"
    )


def test_a_refusal_where_nobody_waits_says_none() -> None:
    """Nor does a pod that only the kubelet knows and that has everything."""
    for shown in (None, {"a": {"c0": FULL}}):
        assert _refusal(Ask(MEMORY, 1), [], shown) == (
            "1 places of memory were asked for, but no waiting container asks for that; "
            "waiting: none"
        )


def test_init_containers_are_not_asking_once_a_later_container_holds_something() -> None:
    assert _refusal(Ask(CORE, 30), [OTHER_INIT], {"p": {"c0": BEGUN}})


# --- which containers may come next --------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "got", "expected"),
    [
        ([MAIN], [], ["0"]),
        ([MAIN, MAIN], [], ["0"]),
        ([MAIN, MAIN], [("0", CORE)], ["0"]),
        ([MAIN, MAIN], [("0", CORE), ("0", MEMORY)], ["1"]),
        ([MAIN, MAIN], [("1", CORE)], ["1"]),
        ([MAIN], [("0", CORE), ("0", MEMORY)], []),
        ([INIT, MAIN], [], ["0", "1"]),
        ([INIT, INIT, MAIN, MAIN], [], ["0", "1", "2"]),
        ([INIT, INIT, MAIN], [("0", CORE)], ["0", "1", "2"]),
        ([INIT, INIT, MAIN], [("0", CORE), ("0", MEMORY)], ["1", "2"]),
        ([INIT, SIDECAR, MAIN], [], ["0", "1"]),
        ([SIDECAR, INIT, MAIN], [], ["0"]),
        ([SIDECAR, INIT, MAIN], [("0", CORE), ("0", MEMORY)], ["1", "2"]),
        ([INIT, MAIN, MAIN], [("1", CORE), ("1", MEMORY)], ["2"]),
        ([INIT], [("0", CORE), ("0", MEMORY)], []),
    ],
)
def test_containers_come_in_order_and_unknown_init_containers_may_be_behind(
    kinds: list[ContainerKind], got: list[tuple[str, Resource]], expected: list[str]
) -> None:
    containers = [container(str(place), kind=kind) for place, kind in enumerate(kinds)]
    found = next_containers(containers, lambda each, resource: (each.name, resource) in got)
    assert [each.name for each in found] == expected


# --- whatever comes ------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """Anything well-typed."""

    ask: Ask
    views: list[PodView]
    listed: list[MatchedPod] | None
    got: frozenset[tuple[PodId, str, Resource]]
    history: AdmissionHistory

    def answer(self) -> Resolution | str:
        try:
            return resolve(
                self.ask,
                views=self.views,
                served=lambda *asked: asked in self.got,
                listed=self.listed,
                history=self.history,
            )
        except ResolutionError as error:
            return str(error)


_resources = st.sampled_from(Resource)
_pod_ids = st.builds(pod_id, st.sampled_from("abc"), st.sampled_from(["u1", "u2", ""]))
_names = st.sampled_from(["c0", "c1", "c2"])
_containers = st.builds(
    ContainerDemand,
    _names,
    st.sampled_from(ContainerKind),
    st.integers(0, 2),
    st.builds(Demand, st.sampled_from([0, 10, 50, 100, 200]), st.sampled_from([0, 4, 10])),
)
_record = st.dictionaries(
    _names, st.just(Allocation(("GPU-0",), 50, 4, Evidence.TICKET)), max_size=2
)
_held = st.none() | st.dictionaries(_resources, st.sampled_from([SOME, MORE, frozenset()]))


@st.composite
def _views(draw: st.DrawFn) -> PodView:
    pod = draw(_pod_ids)
    return view(
        pod.name,
        *draw(st.lists(_containers, min_size=1, max_size=3)),
        uid=pod.uid,
        at=draw(st.integers(0, 1)),
        terminal=draw(st.booleans()),
        annotated=draw(_record),
    )


@st.composite
def _situations(draw: st.DrawFn) -> Situation:
    views = draw(st.lists(_views(), max_size=4, unique_by=lambda each: each.id))
    entries: list[MatchedPod] | None = None
    if draw(st.booleans()):
        known = [
            identified(each, listed(each.id.name, **draw(st.dictionaries(_names, _held))))
            for each in views
            if draw(st.booleans())
        ]
        unknown = [
            identified(pod_id(name, ""), listed(name, **draw(st.dictionaries(_names, _held))))
            for name in draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
        ]
        entries = known + unknown
    ask = Ask(
        draw(_resources),
        draw(st.sampled_from([1, 4, 10, 50, 100, 200])),
        draw(st.none() | _pod_ids),
    )
    got = draw(st.frozensets(st.tuples(_pod_ids, _names, _resources)))
    history = AdmissionHistory(*(draw(st.frozensets(_pod_ids)) for _ in range(4)))
    return Situation(ask, views, entries, got, history)


@patient
@given(_situations())
def test_every_situation_gets_an_answer_that_fits_it_or_a_refusal(situation: Situation) -> None:
    answer = situation.answer()
    ask = situation.ask
    if isinstance(answer, str):
        assert answer.startswith(f"{ask.size} places of {ask.resource} were asked for, but no ")
        return
    assert ask.owner in (None, answer.pod)
    assert count_of(answer.container.demand, ask.resource) == ask.size
    pod = next((each for each in situation.views if each.id == answer.pod), None)
    if pod is not None:
        assert not pod.terminal
        assert answer.container in pod.demand.containers
    if situation.listed is None:
        assert pod is not None
        assert answer.evidence is Evidence.ORDER
    else:
        assert answer.evidence in (Evidence.WITNESS, Evidence.ORDER)
        assert answer.pod in {each.pod for each in situation.listed}
        assert answer.pod not in situation.history.refused
        if pod is None:  # what it asks for is not known
            assert answer.evidence is Evidence.ORDER


@patient
@given(_situations(), st.data())
def test_the_order_of_pods_and_entries_does_not_matter(
    situation: Situation, data: st.DataObject
) -> None:
    shuffled = Situation(
        situation.ask,
        data.draw(st.permutations(situation.views)),
        None if situation.listed is None else data.draw(st.permutations(situation.listed)),
        situation.got,
        situation.history,
    )
    assert shuffled.answer() == situation.answer()


@patient
@given(
    st.lists(
        st.tuples(st.sampled_from([10, 50, 100]), st.sampled_from([4, 8])), min_size=1, max_size=5
    ),
    st.integers(0, 9),
    st.booleans(),
)
def test_a_pod_admitted_alone_is_followed_through_all_its_calls(
    demands: list[tuple[int, int]], others: int, memory_first: bool
) -> None:
    """K1 to K3 hold: whatever waits beside it, every call is settled by the witness."""
    pod = view("p", *(container(f"c{i}", *each) for i, each in enumerate(demands)), at=99)
    beside = [view(f"q{i}", *pod.demand.containers, at=i) for i in range(others)]
    held: dict[str, dict[Resource, frozenset[str]]] = {
        each.name: {} for each in pod.demand.containers
    }
    for each in pod.demand.containers:
        for resource in (MEMORY, CORE) if memory_first else (CORE, MEMORY):
            entries = [identified(pod, listed("p", **held))]
            ask = Ask(resource, count_of(each.demand, resource))
            found = resolve(ask, views=[*beside, pod], served=_served(), listed=entries)
            assert (found.pod, found.container) == (pod.id, each)
            assert found.evidence is WITNESS
            held[each.name][resource] = SOME
