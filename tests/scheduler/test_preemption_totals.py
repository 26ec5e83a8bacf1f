"""Preemption by card where kube-scheduler has victims of its own, and where it has many nodes."""

from itertools import count, product
from typing import Any

import pytest

from placement.cluster.fit import fits_surely
from scheduler import victims as module
from tests.placement.cluster.builders import make_node
from tests.scheduler.eviction_world import Replica, World, full_node, one_card, preempting


def request_processors(world: World, *names: str) -> None:
    """Let pods on the node request 8 processors each."""
    for name in names:
        world.pods[name]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"


def test_victims_by_totals_are_replaced_by_those_of_one_card() -> None:
    """The node is full: kube-scheduler takes any two pods, and no card would have room."""
    world = full_node(prod=(100, 0))
    replica = Replica(world)
    for victims in (["batch-0a", "batch-1a"], ["batch-1a", "batch-1b"]):
        assert replica.preempt("prod", n1=victims)
        assert world.evicted == ["batch-0a", "batch-0b"]
    replica.finish("prod")
    assert replica.results == ["nominated", "bound"]


def test_victims_that_free_processors_too_are_kept() -> None:
    world = full_node(prod=(100, 0))
    request_processors(world, "batch-1a")
    assert Replica(world).preempt("prod", n1=["batch-0a", "batch-1a"])
    assert world.evicted == ["batch-0a", "batch-0b", "batch-1a"]
    # Also by the next leader, though the cards suffice without the last one.
    condition = world.condition("prod")
    assert condition is not None
    assert '"all":true' in condition["message"]


@pytest.mark.parametrize("budgets", [{"app": 0}, {"app": 1, "tier": 1}])
def test_no_pod_is_evicted_if_a_pod_that_frees_processors_cannot_be(
    budgets: dict[str, int],
) -> None:
    world = full_node(prod=(100, 0))
    request_processors(world, "batch-1a")
    world.pods["batch-1a"]["metadata"]["labels"] = dict.fromkeys(budgets, "x")
    for label, allowed in budgets.items():
        world.add_budget(label, allowed, **{label: "x"})
    replica = Replica(world)
    assert replica.preempt("prod", n1=["batch-0a", "batch-1a"])
    assert world.calls == []
    assert replica.results == ["budgets"]


def test_processors_of_pods_that_end_anyway_count() -> None:
    world = full_node(prod=(100, 0))
    request_processors(world, "batch-0b", "batch-1a")
    world.evict("default", "batch-1a", "u-batch-1a")
    assert Replica(world).preempt("prod", n1=["batch-0a", "batch-0b"])
    assert world.evicted == ["batch-1a", "batch-1b"]


def test_victims_that_free_processors_are_evicted_although_a_card_has_room() -> None:
    world = one_card(("batch", 10, {"priority": 1, "cpu": "8"}))
    assert Replica(world).preempt("prod", n1=["batch"])
    assert world.evicted == ["batch"]


@pytest.mark.parametrize(
    "victims", [{"n1": ["web"]}, {"n1": ["batch-0a", "web"]}, {"other": ["batch-0a"]}, {}]
)
def test_victims_that_are_no_gpu_pods_are_left_to_kube_scheduler(
    victims: dict[str, list[str]],
) -> None:
    world = full_node(prod=(100, 0))
    assert not Replica(world).preempt("prod", **victims)
    assert preempting(world).preempt("prod", **victims)  # not once others leave for it


@pytest.mark.parametrize(
    ("priority", "more", "victim"),
    [
        (0, [], "n2-batch"),
        (2, [], "batch-0a"),
        (0, [("n2-more", 5)], "batch-0a"),  # all that must leave the node are compared
    ],
)
def test_nodes_by_cards_and_nodes_by_totals_are_compared(
    priority: int, more: list[tuple[str, int]], victim: str
) -> None:
    world = full_node()
    world.add_second_node(100, priority=priority)
    world.nodes = (*world.nodes[:1], make_node("n2", 2))
    for name, other in more:
        world.run_pod(name, "n2", "1", (100, 8), priority=other, cpu="8")
    replica = Replica(world)
    replica.filter("prod", ["n1"])
    assert replica.preempt("prod", n2=["n2-batch", *(name for name, _ in more)])
    assert world.evicted == [victim]


# --- many nodes --------------------------------------------------------------------------


def test_of_many_nodes_those_count_too_that_kube_scheduler_has_not_asked_about_yet() -> None:
    world = full_node()
    world.nodes = (*world.nodes, *(make_node(f"n{number}", 1) for number in range(2, 101)))
    replica = Replica(world)

    def try_five_times() -> None:
        for _ in range(5):
            replica.filter("prod", ["n1"])
            replica.wait(5)

    try_five_times()
    assert world.calls == []
    assert set(replica.results) == {"elsewhere"}
    assert replica.nodes_for("prod", ["n2"]) == ("n2",)
    try_five_times()
    assert world.calls == []
    # Another filter of kube-scheduler keeps the pod from all of them.
    replica.wait(5)
    replica.wait(5)
    assert world.evicted == ["batch-0a"]


def test_of_many_nodes_few_sets_are_checked_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of all sets of all nodes would take half a minute for one pod."""
    nodes = 20
    world = World(*(make_node(f"n{number}", 4) for number in range(nodes)))
    for number in range(nodes):
        for card, letter in product("0123", "abcd"):
            size = 20 + (number + ord(letter) + int(card)) % 4
            world.run_pod(f"batch-{number}{card}{letter}", f"n{number}", card, (size, 4))
    world.add("prod", (50, 8), priority=1000, inits=[(90, 20)], sidecars=[(30, 4)])
    checks = count()

    def check(*args: Any) -> bool:
        next(checks)
        return fits_surely(*args)

    monkeypatch.setattr(module, "_MOST_CHECKS", 1000)
    monkeypatch.setattr("placement.cluster.preemption.fits_surely", check)
    assert preempting(world).results == ["nominated"]
    assert next(checks) <= 1000 + nodes * (16 + 2)
