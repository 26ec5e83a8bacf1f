"""Preemption by card: the victims, by pod and node, and those of kube-scheduler."""

from collections.abc import Sequence
from itertools import count, product
from typing import Any

import pytest

from placement.cluster.fit import fits_surely
from scheduler import preemptors
from scheduler import victims as module
from scheduler.victims import VictimSearch
from tests.placement.cluster.builders import make_node
from tests.scheduler.eviction_world import Replica, World, full_node, on, one_card, preempting


def test_the_cheapest_pods_are_evicted_and_the_pod_is_bound_in_their_place() -> None:
    world = full_node(cards=3)  # 60 cores are free: the totals suffice
    world.run_pod("batch-2c", "n1", "2", (20, 1), priority=0)
    replica = preempting(world)

    assert world.evicted == ["batch-0a"]
    assert replica.nodes_for("prod") == ()  # it has not ended yet
    replica.wait()
    assert replica.end_pods() == ["batch-0a"]
    assert replica.nodes_for("prod") == ("n1",)
    replica.bind("prod", "n1")
    replica.wait()
    assert world.evicted == ["batch-0a"]
    assert world.condition("prod") is None
    assert replica.results == ["nominated", "bound"]
    assert replica.state.nominated == 0


@pytest.mark.parametrize(
    ("priority", "policy"), [(1, "PreemptLowerPriority"), (0, "PreemptLowerPriority"), (9, "Never")]
)
def test_a_pod_that_may_not_preempt_evicts_no_pod(priority: int, policy: str) -> None:
    world = full_node(prod=None)
    world.add("prod", (60, 4), priority=priority, policy=policy)
    preempting(world)
    assert world.calls == []


@pytest.mark.parametrize(("nodes", "victim"), [(["n1"], "batch-0a"), (["n1", "n2"], "n2-batch")])
def test_the_cheapest_of_the_nodes_that_kube_scheduler_passes_is_taken(
    nodes: Sequence[str], victim: str
) -> None:
    world = full_node()
    world.add_second_node(50)
    Replica(world).try_pods("prod", nodes=nodes)
    assert world.evicted == [victim]


def test_no_pod_is_evicted_if_kube_scheduler_asks_about_one_node_first_and_others_fit() -> None:
    """It does so with a node that it expects to fit."""
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    replica = Replica(world)
    assert replica.nodes_for("prod", ["n1"]) == ()
    assert replica.nodes_for("prod") == ("n2",)
    replica.wait()
    assert world.calls == []


def test_no_pod_is_evicted_for_a_pod_that_only_waits_for_pods_that_end_anyway() -> None:
    world = full_node()
    world.evict("default", "batch-1b", "u-batch-1b")
    replica = preempting(world)
    assert world.evicted == ["batch-1b"]
    assert replica.results == ["waits"]
    # Its end may be shown later than kube-scheduler tries the pod again, for the last time.
    replica.end_pods()
    replica.wait(5)
    assert world.calls == [("evict", "batch-1b"), ("patch", "prod")]
    assert replica.nodes_for("prod") == ("n1",)
    replica.wait()
    assert world.condition("prod") is None


def test_a_node_that_does_not_end_its_pods_gets_no_more_to_end() -> None:
    """Its kubelet may be unavailable: then each of them would be evicted in vain."""
    world = full_node()
    replica = preempting(world)
    for _ in range(20):
        replica.wait(10)
        replica.filter("prod")
    assert world.evicted == ["batch-0a"]
    assert replica.results == ["nominated", "expired", *["none"] * (len(replica.results) - 2)]
    # Another node may help.
    world.add_second_node(50, priority=5)
    replica.state.replace_nodes(world.nodes)
    replica.watch()
    replica.try_pods("prod")
    assert world.evicted == ["batch-0a", "n2-batch"]


def test_a_node_with_a_pod_that_ends_in_time_may_get_more_to_end() -> None:
    world = full_node(prod=(100, 0))
    world.evict("default", "batch-0a", "u-batch-0a")
    preempting(world)
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_no_pod_without_known_cards_or_that_is_being_bound_is_a_victim() -> None:
    for node in ("n1", ""):
        world = one_card()
        world.add("other", (60, 4), node=node)
        replica = Replica(world)
        if not node:
            replica.assume("other", "n1")
        replica.try_pods("prod")
        assert replica.results == ["none"]


def test_no_static_pod_is_a_victim() -> None:
    world = full_node(cards=1)
    for each in world.pods.values():
        each["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    assert preempting(world).results == ["none"]


# --- pods that change meanwhile ----------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("metadata", {"deletionTimestamp": "2027-01-15T08:00:30Z"}),
        ("metadata", {"uid": "u-another"}),
        ("spec", {"nodeName": "n9"}),
        ("", {}),
    ],
)
def test_no_pod_is_evicted_for_a_pod_that_changes_before_the_watch_shows_it_or_is_being_bound(
    part: str, change: dict[str, str]
) -> None:
    world = full_node()
    replica = Replica(world)
    replica.filter("prod")
    if part:
        world.pods["prod"][part] |= change
    else:
        replica.assume("prod", "n1")
    replica.wait()
    assert (world.calls, replica.results) == ([], [])


def test_no_pod_is_evicted_for_a_pod_that_is_deleted_while_its_nomination_is_written() -> None:
    world = full_node()
    replica = Replica(world)
    world.after = on("patch", lambda: replica.delete("prod"))
    replica.try_pods("prod")
    assert world.evicted == []
    assert replica.state.nominated == 0


def test_a_node_that_changes_while_budgets_are_read_is_searched_again() -> None:
    world = full_node()
    replica = Replica(world)
    world.before = on("list", lambda: replica.delete("batch-1b"))
    replica.try_pods("prod")
    assert world.evicted == []
    assert replica.results == ["waits"]


# --- several pods at once ---------------------------------------------------------------


def test_the_highest_priority_comes_first() -> None:
    world = full_node(cards=1, prod=(100, 0))
    world.add("higher", (100, 0), priority=2000)
    Replica(world).try_pods("prod", "higher")
    assert world.condition("higher") is not None
    assert world.condition("prod") is None


def test_one_search_is_enough_for_equal_pods_without_victims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, choose = count(), VictimSearch.choose

    def counted(*args: Any, **more: Any) -> object:
        next(searches)
        return choose(*args, **more)

    monkeypatch.setattr(VictimSearch, "choose", counted)
    world, names = full_node(), [f"equal-{number}" for number in range(3)]
    for name in names:
        world.add(name, (100, 0), priority=1)
    replica = Replica(world)
    replica.try_pods(*names)
    assert replica.results == ["none"] * 3
    assert next(searches) == 1


def test_equal_pods_with_other_nodes_have_a_search_each() -> None:
    world = full_node(prod=(100, 0))
    world.add_second_node(100, priority=2000)
    world.add("prod-2", (100, 0), priority=1000)
    replica = Replica(world)
    replica.filter("prod", ["n2"])
    replica.try_pods("prod-2", nodes=["n1"])
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_a_step_that_takes_long_leaves_the_rest_to_the_next_one() -> None:
    """Nominations and the lease are looked at between two steps."""
    world = full_node(prod=(100, 0))
    world.add("prod-2", (100, 0), priority=1000)
    replica = Replica(world)

    def take_time(_verb: str) -> None:
        replica.time += 1

    world.after = take_time
    replica.try_pods("prod", "prod-2")
    assert world.evicted == ["batch-0a", "batch-0b"]
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b", "batch-1a", "batch-1b"]


def test_of_too_many_pods_the_oldest_wait_until_kube_scheduler_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemptors, "_MOST_WAITING", 2)
    world = full_node(cards=1)
    for number, priority in enumerate((3000, 10, 20)):
        world.add(f"prod-{number}", (100, 0), priority=priority)
    replica = Replica(world)
    replica.try_pods("prod-0", "prod-1", "prod-2")
    assert world.condition("prod-2") is not None
    assert len(replica.results) == 2


def test_no_victims_are_searched_where_no_end_of_pods_would_help() -> None:
    world = full_node(prod=(300, 0))
    replica = Replica(world)
    assert replica.filter("prod").unresolvable.keys() == {"n1"}
    replica.wait()
    assert replica.results == []


def test_pods_that_are_evicted_for_one_pod_are_evicted_for_no_other() -> None:
    for cores, result in ((60, "none"), (40, "waits")):
        world = one_card(("slow", 80, {"priority": 1, "grace": 600}))
        world.add("second", (cores, 4), priority=1000)
        replica = Replica(world)
        replica.try_pods("prod", "second")
        assert world.evicted == ["slow"]
        assert replica.results == ["nominated", result]


# --- kube-scheduler's victims, and many nodes ---------------------------------------------


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
