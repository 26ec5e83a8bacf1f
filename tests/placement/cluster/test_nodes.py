"""Nodes as the scheduler reads them: cards, and in words why there are none."""

import json
from typing import Any

import pytest

from contract.inventory import MOST_CARDS, NOTHING, Amounts
from contract.wishes import NO_WISHES
from placement.cluster.nodes import TEMPLATE, Problem, parse_node, parse_template
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.scoring import Policy
from tests.placement.cluster.builders import NAMES, a_node, a_pod, bare_node, make_node


def test_cards_are_read_with_their_size_in_blocks_and_their_health() -> None:
    node = a_node("n1", 2, blocks=[32, 16], unhealthy=[1])
    assert [(card.uuid, card.index, card.unhealthy) for card in node.cards] == [
        ("GPU-n1-0", 0, ""),
        ("GPU-n1-1", 1, "Xid 79"),
    ]
    assert node.sizes == ((100, 32), (100, 16))
    assert not node.problem


@pytest.mark.parametrize("source", ["admin", "agent", "both"])
def test_a_cordoned_card_has_no_fault_and_gets_no_container(source: str) -> None:
    node = make_node("n1", 2, cordoned=() if source == "agent" else [1])
    annotations = node["metadata"]["annotations"]
    if source != "admin":
        annotations[NAMES.gpu_cards] = _cards(health="Unhealthy", reason="cordoned")
    found = parse_node(node, NAMES)
    assert [(card.unhealthy, card.cordoned) for card in found.cards] == [("", False), ("", True)]
    assert found.card_set.available == (0,)
    with pytest.raises(NoPlacement, match=r"0 of 60 cores free; 1: cordoned$"):
        plan_pod(a_pod("a", (60, 4)), found, [NOTHING, Amounts(100, 32)], Policy.BINPACK)


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
        (_changed(memoryBlock=0), Problem.UNREADABLE),
        (_changed(cards=[]), Problem.NO_CARDS),
    ],
)
def test_a_node_without_a_usable_inventory_shows_the_reason(
    inventory: object, problem: Problem
) -> None:
    assert parse_node(bare_node("n1", inventory), NAMES).problem is problem


@pytest.mark.parametrize(
    ("allocatable", "unhealthy", "problem"),
    [
        ("0", [], Problem.AGENT_DISCONNECTED),
        ("0", [0, 1], Problem.NONE),
        ("200", [], Problem.NONE),
        (None, [], Problem.NONE),
    ],
)
def test_a_disconnected_agent_is_detected_by_the_nodes_allocatable(
    allocatable: str | None, unhealthy: list[int], problem: Problem
) -> None:
    """Fact K19: the inventory stays behind; allocatable falls to 0."""
    assert a_node("n1", unhealthy=unhealthy, allocatable=allocatable).problem is problem


def _template(node: dict[str, Any], **labels: str) -> dict[str, Any]:
    node["metadata"]["labels"] = {TEMPLATE: "true", **labels}
    return node


def _settings(cores: object, memory: object = "2548") -> dict[str, Any]:
    """A node as an autoscaler makes it from the settings of a group without nodes."""
    node = bare_node("group")
    node["status"] = {"allocatable": {NAMES.core: cores, NAMES.memory: memory}}
    return node


def test_a_new_node_has_none_of_the_troubles_of_the_node_that_it_is_copied_from() -> None:
    copied = make_node("n1", 3, blocks=[32, 16, 8], unhealthy=[0], cordoned=[1], allocatable="0")
    assert parse_template(copied, NAMES) is None
    node = parse_template(_template(copied), NAMES)
    assert node is not None
    assert (node.card_set.available, node.sizes) == ((0, 1, 2), ((100, 32), (100, 16), (100, 8)))
    assert not node.problem
    named = a_pod("a", (60, 4), annotations={NAMES.use_gpu_uuid: "GPU-n1-0"}).wishes
    assert {*node.card_set_for(named).excluded} == {"use-gpu-uuid"}


def test_instances_of_a_new_node_are_still_instances() -> None:
    copied = bare_node("n1", _cards(uuid="MIG-1", index=1007, model="NVIDIA A100 MIG 1g.5gb"))
    node = parse_template(_template(copied), NAMES)
    assert node is not None
    assert [card.is_instance for card in node.cards] == [False, True]


def test_a_group_without_nodes_has_equal_cards_by_its_resources_and_label() -> None:
    settings = _template(_settings("800"), **{NAMES.gpu_model: "NVIDIA-A100-SXM4-80GB"})
    node = parse_template(settings, NAMES)
    assert node is not None
    assert (node.sizes, node.problem) == (((100, 318),) * 8, Problem.NONE)
    wished = a_pod("a", (60, 4), annotations={NAMES.use_gpu_type: "h100"}).wishes
    assert {*node.card_set_for(wished).excluded} == {"use-gpu-type"}


@pytest.mark.parametrize(
    ("cores", "memory", "cards"),
    [
        ("99", "300", 0),
        ("0", "300", 0),
        ("-100", "300", 0),
        ("many", "300", 0),
        (None, None, 0),
        ("199", "300", 1),
        ("1k", "1e3", 10),
        ("9e18", "9e18", MOST_CARDS),
    ],
)
def test_a_group_has_as_many_cards_as_whole_hundreds_of_cores(
    cores: object, memory: object, cards: int
) -> None:
    node = parse_template(_template(_settings(cores, memory)), NAMES)
    assert node is not None
    assert len(node.cards) == cards
    assert (node.problem is Problem.NO_INVENTORY) == (not cards)


def test_an_inventory_that_cannot_be_read_is_not_replaced_by_resources() -> None:
    node = parse_template(_template({**_settings("800"), **bare_node("n1", "{}")}), NAMES)
    assert node is not None
    assert node.problem is Problem.UNREADABLE
