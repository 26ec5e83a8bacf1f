"""Decisions about nodes: cached by node until its free amounts change; and their scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.cluster.fit import Fit, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import TEMPLATE, Node
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from scheduler import decisions as module
from scheduler.decisions import Decisions, FilterResult
from scheduler.score import score
from scheduler.state import State
from tests.agent.builders import patient
from tests.placement.cluster.builders import (
    NAMES,
    a_node,
    a_pod,
    bare_node,
    hint,
    make_node,
    make_pod,
)

POD = a_pod("new", (60, 4))
FULL = "no card has 60 cores and 4 blocks free"


@pytest.fixture
def state() -> State:
    made = State(NAMES)
    for name in ("n1", "n2"):
        made.put_node(make_node(name, 1))
    made.put_node(bare_node("n3"))
    return made


@pytest.fixture
def decisions(state: State) -> Decisions:
    return Decisions(state)


def fill(state: State, node: str, cores: int = 50, name: str = "old") -> None:
    state.put_pod(make_pod(f"{name}-{node}", (cores, 4), node=node, annotations=hint("0")))


def test_a_decision_is_cached_until_free_amounts_change(
    state: State, decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    judge = Decisions.decide_node

    def counted(self: Decisions, shape: PodClass, snapshot: NodeSnapshot) -> module.NodeDecision:
        judged.append(snapshot.node.name)
        return judge(self, shape, snapshot)

    monkeypatch.setattr(Decisions, "decide_node", counted)
    for name in ("a", "b"):
        assert decisions.filter(a_pod(name, (60, 4)), ["n1", "n2"]).fitting == ("n1", "n2")
        assert decisions.scores(a_pod(name, (60, 4)), ["n1", "n2"]) == [3, 3]
    assert judged == ["n1", "n2"]
    fill(state, "n1")
    assert decisions.filter(POD, ["n1", "n2"]).fitting == ("n2",)
    assert judged == ["n1", "n2", "n1"]
    state.drop_pod("u-old-n1")
    assert decisions.filter(POD, ["n1", "n2"]).fitting == ("n1", "n2")


def test_decisions_for_few_pod_classes_and_known_nodes_are_cached(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_CLASSES", 2)
    for cores in (10, 20, 10, 30):
        decisions.filter(a_pod("a", (cores, 4)), ["n1", f"made-up-{cores}"])
    assert [shape.peak[0] for shape in decisions._tables] == [10, 30]
    assert {name for each in decisions._tables.values() for name in each.decided} == {"n1"}


def test_scores_follow_the_policy_over_nodes_and_the_authors_wish(state: State) -> None:
    fill(state, "n1", 30)
    pod = a_pod("a", (30, 4))
    spread = a_pod("a", (30, 4), annotations={NAMES.gpu_node_policy: "spread"})
    packing, spreading = Decisions(state), Decisions(state, Policy.SPREAD)
    assert packing.scores(pod, ["n1", "n2", "n3"]) == [8, 2, 0]
    assert packing.scores(spread, ["n1", "n2"]) == spreading.scores(pod, ["n1", "n2"]) == [4, 7]


def test_an_assumed_pod_does_not_block_itself(state: State, decisions: Decisions) -> None:
    bound = a_pod("new", (60, 4), node="n1", annotations=hint("0"))
    state.assume(bound)
    assert decisions.filter(POD, ["n1", "n2"]).fitting == ("n1", "n2")
    others = decisions.filter(a_pod("other", (60, 4)), ["n1", "n2"]).fitting
    assert others == ("n2",)
    state.assume(a_pod("new", (60, 4), node="n2", annotations=hint("0")))
    both = decisions.filter(a_pod("other", (60, 4)), ["n1", "n2"])
    assert both.fitting == ()
    assert decisions.scores(POD, others) == [3]
    assert decisions.scores(a_pod("other", (60, 4)), others) == [0]
    state.drop_node("n1")
    assert decisions.filter(POD, ["n1"]).failed == {"n1": "the node is not known yet"}


def test_without_a_gpu_every_node_fits(decisions: Decisions) -> None:
    assert decisions.filter(None, ["n1", "n9"]) == FilterResult(("n1", "n9"))
    assert decisions.scores(None, ["n1", "n9"]) == [0, 0]
    assert decisions.filter(None, ["n1"], [bare_node("n1")]) == FilterResult(("n1",))
    assert decisions.scores(None, ["n1"], [bare_node("n1")]) == [0]


def test_whole_nodes_are_decided_by_their_own_content(state: State, decisions: Decisions) -> None:
    """Of an autoscaler: copies of a node have its annotations, and no pods.

    Nodes from a group's settings have only resources. New nodes have healthy cards.
    """
    fill(state, "n1")
    template, copied, made = make_node("n1", 1), make_node("n1", 1, unhealthy=[0]), bare_node("x")
    made["status"] = {"allocatable": {NAMES.core: "800", NAMES.memory: "2548"}}
    for name, node in (("template", template), ("copied", copied), ("made", made)):
        node["metadata"]["name"] = name
    for node in (copied, made):
        node["metadata"]["labels"] = {TEMPLATE: "true"}
    nodes = [make_node("n1", 1), template, make_node("n2", 2), bare_node("n4"), copied, made]
    names = [node["metadata"]["name"] for node in nodes]
    found = decisions.filter(POD, names, nodes)
    assert found.fitting == ("template", "n2", "copied", "made")
    assert found.failed == {"n1": FULL}
    assert list(found.unresolvable) == ["n4"]
    assert decisions.scores(POD, names, nodes)[:4] == [0, 3, 2, 0]
    large = decisions.filter(a_pod("new", (60, 319)), names, nodes)
    assert (large.fitting, len(large.unresolvable)) == ((), 6)
    assert decisions.filter(a_pod("new", (300, 0)), names, nodes).fitting == ("made",)
    assert state.counts == (3, 1)


@patient
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2", "n3"]),
            st.sampled_from([0, 10, 30, 60, 100]),
            st.sampled_from([(10, 1), (60, 4), (100, 8)]),
        ),
        max_size=12,
    )
)
def test_cached_decisions_are_those_without_a_cache(
    steps: list[tuple[str, int, tuple[int, int]]],
) -> None:
    state = State(NAMES)
    for name in ("n1", "n2"):
        state.put_node(make_node(name, 2))
    decisions = Decisions(state)
    fitting: tuple[str, ...] = ()
    for number, (node, cores, limit) in enumerate(steps):
        if cores:
            fill(state, node, cores, f"p{number}")
        elif number % 2:
            state.put_node(make_node(node, 2, unhealthy=[0]))
        else:
            state.drop_node(node)
        names, pod = ["n1", "n2", "n3", "n2"], a_pod("new", limit)
        uncached = Decisions(state)
        assert decisions.scores(pod, fitting) == uncached.scores(pod, list(fitting))
        found = decisions.filter(pod, names)
        assert found == uncached.filter(pod, names)
        fitting = found.fitting
        assert decisions.scores(pod, fitting) == uncached.scores(pod, list(fitting))
        assert decisions.scores(pod, names) == uncached.scores(pod, names)


# --- scores: whole cards kept whole, and connected sets -----------------------------------


BINPACK, SPREAD = Policy.BINPACK, Policy.SPREAD


def scored(pod: PodInfo, node: Node, *free: tuple[int, int], policy: Policy = BINPACK) -> int:
    view = NodeSnapshot(node, free)
    fit = check(pod.pod_class, view)
    assert isinstance(fit, Fit)
    return score(pod.pod_class, view, fit, policy)


@pytest.mark.parametrize(
    ("free", "binpack", "spread"),
    [
        ([(100, 32), (100, 32)], 1, 9),  # would begin a card of an empty node
        ([(50, 32), (100, 32)], 7, 6),  # a begun card has room
        ([(20, 32), (100, 32)], 3, 5),  # the begun card has none
        ([(40, 32), (0, 32)], 10, 1),
        ([(100, 32), (100, 9)], 2, 6),  # memory is what there is less of
    ],
)
def test_a_share_goes_where_cards_are_begun_or_where_most_is_free(
    free: list[tuple[int, int]], binpack: int, spread: int
) -> None:
    node, pod = a_node("n1", 2), a_pod("a", (30, 4))
    assert scored(pod, node, *free) == binpack
    assert scored(pod, node, *free, policy=SPREAD) == spread


@pytest.mark.parametrize(
    ("kind", "expected"), [("NV4", 10), ("PIX", 9), ("PXB", 8), ("PHB", 7), ("NODE", 6), ("SYS", 5)]
)
def test_a_set_of_cards_goes_where_it_is_well_connected(kind: str, expected: int) -> None:
    node = a_node("n1", 2, links={(0, 1): kind})
    assert scored(a_pod("a", (200, 4)), node, (100, 32), (100, 32)) == expected


def test_only_the_cards_that_fit_count_for_a_sets_connection() -> None:
    links = {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"}
    node, pod = a_node("n1", 3, links=links), a_pod("a", (200, 4))
    assert scored(pod, node, (100, 32), (100, 32), (100, 32)) == 8
    assert scored(pod, node, (100, 32), (90, 32), (100, 32)) == 4


def test_a_share_of_several_cards_goes_where_these_are_connected_and_begun() -> None:
    node = a_node("n1", 3, links={(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"})
    pod = a_pod("a", (60, 4), split={"c0": 2})
    begun = [(60, 32), (60, 32), (100, 32)]  # (47 of 100 held, best links, no card begun) / 3
    assert scored(pod, node, *begun) == 8
    assert scored(pod, node, (100, 32), (60, 32), (60, 32)) == 7  # one card begun
    assert scored(pod, node, (60, 32), (20, 32), (60, 32)) == 6  # no link between those with room
    assert scored(pod, node, *begun, policy=SPREAD) == 8  # fullness and links alone


def test_of_a_pod_with_whole_cards_and_a_share_both_count() -> None:
    """Links, and whether the share begins a card."""
    node = a_node("n1", 3, links={(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"})
    pod = a_pod("a", (200, 4), (30, 4))
    assert scored(pod, node, (100, 32), (100, 32), (60, 32)) == 10  # (90 of 100, 1, 1) / 3
    assert scored(pod, node, (100, 32), (100, 32), (100, 32)) == 6  # (77 of 100, 1, 0) / 3


def test_unhealthy_cards_have_no_free_capacity() -> None:
    node = a_node("n1", 2, unhealthy=[1])
    assert scored(a_pod("a", (50, 4)), node, (50, 32), (100, 32)) == 10


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 32)), min_size=2, max_size=2),
    st.sampled_from([(10, 1), (50, 8), (100, 4), (200, 8)]),
    st.sampled_from([{}, {"c0": 2}]),
    st.sampled_from(Policy),
)
def test_scores_are_within_what_kube_scheduler_takes(
    free: list[tuple[int, int]], limit: tuple[int, int], split: dict[str, int], policy: Policy
) -> None:
    node, pod = a_node("n1", 2), a_pod("a", limit, split=split if limit[0] < 200 else {})
    view = NodeSnapshot(node, free)
    fit = check(pod.pod_class, view)
    if isinstance(fit, Fit):
        assert 0 <= score(pod.pod_class, view, fit, policy) <= 10
