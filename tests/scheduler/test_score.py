"""Scores: packing or spreading, whole cards kept whole, connected sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.cluster.fit import Fit, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import Node
from placement.pods import PodInfo
from placement.scoring import Policy
from scheduler.score import score
from tests.placement.cluster.builders import a_node, a_pod

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
