"""Situation 15: a Topology Manager policy other than ``none`` (fact K23)."""

import pytest

from simulator.kubelet.topology import TopologyPolicy
from tests.situations.build import (
    NAMES,
    Json,
    a_node,
    a_pod,
    assert_right,
    assert_sound,
    cards_of,
    gpu,
    said_to,
)

POLICIES = pytest.mark.parametrize(
    ("seed", "policy"), [(0, "best-effort"), (1, "restricted"), (2, "single-numa-node")]
)


def fillers() -> list[Json]:
    """Cards 0 and 1, on NUMA node 0, have 40 cores left each; 2 and 3, on node 1, one has all."""
    sizes = [(60, 4), (60, 4), (95, 4)]
    return [a_pod(f"filler-{n}", gpu("c0", *size), at=n) for n, size in enumerate(sizes)]


@POLICIES
def test_a_pod_that_fits_runs_where_the_kubelet_is_not_told_of_numa_nodes(
    policy: TopologyPolicy, seed: int
) -> None:
    with a_node(seed=seed, cards=4, kubelet={"topology": policy}) as node:
        node.admit(fillers())
        node.admit([a_pod("p", gpu("c0", 50, 4))])
        assert said_to(node, "uid-p") == ""
        assert_right(node, "uid-p")
        assert_sound(node)


@POLICIES
def test_with_numa_nodes_told_the_kubelet_offers_the_node_where_no_card_fits(
    policy: TopologyPolicy, seed: int
) -> None:
    """It counts 80 places on node 0, which are of two cards."""
    with a_node(seed=seed, cards=4, numa=True, kubelet={"topology": policy}) as node:
        node.admit(fillers())
        assert len(cards_of(node, "uid-filler-0") | cards_of(node, "uid-filler-1")) == 2
        node.admit([a_pod("p", gpu("c0", 50, 4))])
        assert "no card fits 50 cores and 4 memory blocks" in said_to(node, "uid-p")
        assert_sound(node)


def test_whole_cards_stay_on_one_numa_node_where_it_is_told() -> None:
    with a_node(cards=4, numa=True, kubelet={"topology": "restricted"}) as node:
        node.admit([a_pod("p", gpu("c0", 200, 4)), a_pod("q", gpu("c0", 200, 4))])
        assert_right(node, "uid-p", "uid-q")
        assert_sound(node)


def test_cards_that_must_be_of_one_numa_node_are_or_the_pod_is_refused_in_words() -> None:
    """On a node whose kubelet is not told of NUMA nodes; each has two of the four cards."""
    wish = {NAMES.gpu_link: "numa"}
    with a_node(cards=4) as node:
        node.admit([a_pod("share", gpu("c0", 30, 4))])
        node.admit([a_pod("three", gpu("c0", 300), annotations=wish, at=1)])
        why = "no 3 of the 3 that do are of one NUMA node (gpu-link: numa)"
        assert why in said_to(node, "uid-three")
        node.admit([a_pod("pair", gpu("c0", 200), annotations=wish, at=2)])
        assert_right(node, "uid-share", "uid-pair")
        assert {int(each[4]) for each in cards_of(node, "uid-pair")} == {2, 3}
        assert_sound(node)
