"""Nodes as the scheduler reads them: cards, and in words why there are none."""

import json

import pytest

from contract.wishes import NO_WISHES
from placement.cluster.nodes import Problem, parse_node
from tests.placement.cluster.builders import NAMES, a_node, bare_node, make_node


def test_cards_are_read_with_their_size_in_blocks_and_their_health() -> None:
    node = a_node("n1", 2, blocks=[32, 16], unhealthy=[1])
    assert [(card.uuid, card.index, card.unhealthy) for card in node.cards] == [
        ("GPU-n1-0", 0, ""),
        ("GPU-n1-1", 1, "Xid 79"),
    ]
    assert node.sizes == ((100, 32), (100, 16))
    assert not node.problem


def test_alike_nodes_share_what_placing_knows_of_their_cards() -> None:
    links = {(0, 1): "NV4"}
    one = a_node("n1", links=links)
    assert one.card_set is a_node("n2", links=links).card_set
    assert one.card_set is not a_node("n2").card_set
    assert one.card_set is not a_node("n2", links=links, unhealthy=[0]).card_set
    assert one.card_set_for(NO_WISHES) is one.card_set


def test_a_node_on_which_nothing_changed_stays_the_same_object() -> None:
    before = a_node("n1")
    assert parse_node(make_node("n1"), NAMES, before) is before
    assert parse_node(make_node("n1", unhealthy=[0]), NAMES, before) is not before


def _changed(**changes: object) -> str:
    document = json.loads(make_node()["metadata"]["annotations"][NAMES.gpu_cards])
    return json.dumps({**document, **changes})


def _cards(**changes: object) -> str:
    document = json.loads(make_node()["metadata"]["annotations"][NAMES.gpu_cards])
    first, second = document["cards"]
    return _changed(cards=[first, {**second, **changes}])


@pytest.mark.parametrize(
    ("inventory", "problem"),
    [
        (None, Problem.NO_INVENTORY),
        ("{}", Problem.UNREADABLE),
        (7, Problem.UNREADABLE),
        (_changed(links=[{"cards": [0, 1], "kind": "WIFI"}]), Problem.UNREADABLE),
        (_changed(links=[{"cards": [1, 0], "kind": "PIX"}]), Problem.UNREADABLE),
        (_cards(index=0), Problem.UNREADABLE),
        (_cards(uuid="GPU-n1-0"), Problem.UNREADABLE),
        (_changed(cards=[]), Problem.NO_CARDS),
    ],
)
def test_a_node_without_a_usable_inventory_shows_the_reason(
    inventory: object, problem: Problem
) -> None:
    assert parse_node(bare_node("n1", inventory), NAMES).problem is problem


@pytest.mark.parametrize(
    ("allocatable", "problem"),
    [("0", Problem.AGENT_DISCONNECTED), ("200", Problem.NONE), (None, Problem.NONE)],
)
def test_a_disconnected_agent_is_detected_by_the_nodes_allocatable(
    allocatable: str | None, problem: Problem
) -> None:
    """Fact K19: the inventory stays behind; allocatable falls to 0."""
    assert a_node("n1", allocatable=allocatable).problem is problem


def test_cards_that_are_all_unhealthy_do_not_mean_that_the_agent_is_disconnected() -> None:
    assert a_node("n1", unhealthy=[0, 1], allocatable="0").problem is Problem.NONE
