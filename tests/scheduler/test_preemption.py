"""Preemption by card: who is evicted, what is kept for whom, and what a killed replica leaves."""

from itertools import count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.apiserver.errors import Rejected, TooManyRequests
from common.errors import Unavailable
from placement.cluster.fit import fits_surely
from scheduler.decisions import ELSEWHERE
from scheduler.nominations import Nomination
from tests.placement.cluster.builders import make_node
from tests.scheduler.eviction_world import START, Replica, World, full_node


def preempting(world: World, name: str = "prod") -> Replica:
    """A replica that was asked about a pod, after it has looked for victims."""
    replica = Replica(world)
    assert replica.ask(name).fitting == ()
    replica.wait()
    return replica


def test_the_cheapest_pods_are_evicted_and_the_pod_is_bound_in_their_place() -> None:
    world = full_node(cards=3)  # 60 cores are free: the totals suffice
    world.run_pod("batch-2c", "n1", "2", (20, 1), priority=0)
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)

    assert world.evicted == ["batch-0a"]
    assert replica.ask("prod").fitting == ()  # it has not ended yet
    replica.wait()
    assert world.end_pods() == ["batch-0a"]
    replica.watch()
    assert replica.ask("prod").fitting == ("n1",)
    replica.bind("prod", "n1")
    replica.wait()
    assert world.evicted == ["batch-0a"]
    assert world.condition("prod") is None
    assert replica.results == ["nominated", "bound"]
    assert replica.state.nominated == 0


def test_the_nomination_is_written_before_anybody_is_evicted() -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    preempting(world)
    assert world.calls == [("patch", "prod"), ("evict", "batch-0a"), ("evict", "batch-0b")]
    assert world.pods["prod"]["status"]["nominatedNodeName"] == "n1"
    condition = world.condition("prod")
    assert condition is not None
    assert condition["message"] == (
        '{"node":"n1","cards":{"c0":"0"},"victims":["u-batch-0a","u-batch-0b"],'
        '"until":"2027-01-15T08:01:31Z"}'
    )
    kept = [each["type"] for each in world.pods["prod"]["status"]["conditions"]]
    assert kept == ["PodScheduled", "gpu-turnstile.io/CardsNominated"]


def test_events_say_who_left_for_whom_and_name_no_pod_of_other_namespaces() -> None:
    world = full_node()
    world.pods["batch-0b"]["metadata"]["namespace"] = "team-b"
    world.add("prod", (100, 0), priority=1000)
    preempting(world)
    said = [(each["involvedObject"]["name"], each["reason"], each["type"]) for each in world.events]
    assert said == [
        ("prod", "GPUPreemption", "Normal"),
        ("batch-0a", "Preempted", "Normal"),
        ("batch-0b", "Preempted", "Normal"),
    ]
    left = "of higher priority, which fits on no card without leaving node n1 to it"
    victims = "batch-0a, with UID u-batch-0b"
    assert [each["message"] for each in world.events] == [
        f"it fits on no card, so 2 pods of lower priority must leave node n1: {victims}",
        f"by pod prod {left}",
        f"by pod with UID u-prod {left}",
    ]


@pytest.mark.parametrize(
    ("priority", "policy"), [(1, "PreemptLowerPriority"), (0, "PreemptLowerPriority"), (9, "Never")]
)
def test_a_pod_without_the_right_evicts_nobody(priority: int, policy: str) -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=priority, policy=policy)
    preempting(world)
    assert world.calls == []


def test_only_nodes_that_kube_scheduler_passes_are_considered() -> None:
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.run_pod("n2-batch", "n2", "0", (50, 8), priority=0)
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.ask("prod", ["n1"])
    replica.wait()
    assert world.evicted == ["batch-0a"]


def test_the_cheapest_node_is_taken() -> None:
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.run_pod("n2-batch", "n2", "0", (50, 8), priority=0)
    world.add("prod", (60, 4), priority=1000)
    preempting(world)
    assert world.evicted == ["n2-batch"]


def test_nobody_is_evicted_if_kube_scheduler_asks_about_one_node_first_and_others_fit() -> None:
    """It does so with a node that it expects to fit."""
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    assert replica.ask("prod", ["n1"]).fitting == ()
    assert replica.ask("prod").fitting == ("n2",)
    replica.wait()
    assert world.calls == []


def test_nobody_is_evicted_for_a_pod_that_only_waits_for_pods_that_end_anyway() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    world.evict("default", "batch-1b", "u-batch-1b")
    replica = preempting(world)
    assert world.evicted == ["batch-1b"]
    assert replica.results == ["waits"]
    # Its end may be shown later than kube-scheduler tries the pod again, for the last time.
    world.end_pods()
    replica.watch()
    replica.wait(5)
    assert world.calls == [("evict", "batch-1b"), ("patch", "prod")]
    assert replica.ask("prod").fitting == ("n1",)
    replica.wait()
    assert world.condition("prod") is None


def test_a_node_that_does_not_end_its_pods_gets_no_more_to_end() -> None:
    """Its kubelet may be unavailable: then each of them would be evicted in vain."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    for _ in range(20):
        replica.wait(10)
        replica.ask("prod")
    assert world.evicted == ["batch-0a"]
    assert replica.results == ["nominated", "expired", *["none"] * (len(replica.results) - 2)]
    # Another node may help.
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.run_pod("n2-batch", "n2", "0", (50, 8), priority=5)
    replica.state.replace_nodes(world.nodes)
    replica.watch()
    replica.ask("prod")
    replica.wait()
    assert world.evicted == ["batch-0a", "n2-batch"]


def test_a_node_with_a_pod_that_ends_in_time_may_get_more_to_end() -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    world.evict("default", "batch-0a", "u-batch-0a")
    preempting(world)
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_no_second_set_is_taken_while_victims_end() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000, grace=600)
    replica = preempting(world)
    for _ in range(40):
        assert replica.ask("prod").fitting == ()
        replica.wait()
    assert world.evicted == ["batch-0a"]


def test_cards_are_kept_until_the_slowest_victim_has_ended() -> None:
    world = full_node()
    world.pods["batch-0a"]["spec"]["terminationGracePeriodSeconds"] = 600
    world.add("prod", (100, 0), priority=1000)
    replica = preempting(world)
    replica.wait(659)
    assert replica.results == ["nominated"]
    replica.wait()
    replica.wait()
    assert replica.results == ["nominated", "expired"]


def test_no_second_set_is_taken_while_a_slow_victim_ends() -> None:
    world = World(make_node("n1", 2))
    for card in range(2):
        world.run_pod(f"slow-{card}", "n1", str(card), (100, 32), priority=1, grace=600)
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    for _ in range(60):
        replica.ask("prod")
        replica.wait(10)
    assert world.evicted == ["slow-0"]
    assert world.end_pods() == ["slow-0"]
    replica.watch()
    assert replica.ask("prod").fitting == ("n1",)


@pytest.mark.parametrize(("cores", "result"), [(60, "none"), (40, "waits")])
def test_what_leaves_for_one_pod_leaves_for_no_other(cores: int, result: str) -> None:
    world = World(make_node("n1", 1))
    world.run_pod("slow", "n1", "0", (80, 8), priority=1, grace=600)
    world.add("prod", (60, 4), priority=1000)
    world.add("second", (cores, 4), priority=1000)
    replica = Replica(world)
    replica.ask("prod")
    replica.ask("second")
    replica.wait()
    assert world.evicted == ["slow"]
    assert replica.results == ["nominated", result]


def test_cards_are_kept_until_the_victims_of_others_have_ended_too() -> None:
    world = World(make_node("n1", 1))
    world.run_pod("slow", "n1", "0", (50, 8), priority=1, grace=300)
    world.run_pod("quick", "n1", "0", (40, 8), priority=2, grace=0)
    world.add("prod-1", (40, 8), priority=1000)
    world.add("prod-2", (50, 8), priority=1000)
    replica = Replica(world)
    for name in ("prod-1", "prod-2"):
        replica.ask(name)
        replica.wait()
    assert world.evicted == ["slow", "quick"]
    del world.pods["quick"]
    replica.watch()
    replica.wait(300)
    assert replica.state.nominated == 2
    finish(world, replica, "prod-1", "prod-2")
    assert replica.results == ["nominated", "nominated", "bound", "bound"]


def test_pods_of_lower_or_equal_priority_do_not_take_the_room_and_higher_ones_may() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    for name, priority in (("lower", 999), ("equal", 1000), ("higher", 1001)):
        world.add(name, (50, 4), priority=priority, policy="Never")
    world.add("tiny", (10, 1), priority=0)
    replica = preempting(world)
    world.end_pods()
    replica.watch()
    assert replica.ask("lower").fitting == ()
    assert replica.ask("equal").fitting == ()
    assert replica.ask("tiny").fitting == ("n1",)  # on the other card
    assert replica.ask("higher").fitting == ("n1",)
    world.add("unknown", (50, 4), priority=1001)  # to the watch, which may lag behind
    assert replica.ask("unknown").fitting == ()
    replica.watch()
    assert replica.ask("unknown").fitting == ("n1",)


def test_what_is_free_beside_the_kept_cards_can_be_used_while_victims_end() -> None:
    world = World(make_node("n1", 1))
    world.run_pod("batch", "n1", "0", (70, 8), priority=1)
    world.add("prod", (60, 4), priority=1000)
    world.add("fits", (30, 1), priority=0)
    world.add("more", (40, 1), priority=0)
    world.add("too-much", (41, 1), priority=0)
    replica = preempting(world)
    assert world.evicted == ["batch"]
    assert replica.ask("fits").fitting == ("n1",)
    assert replica.ask("more").fitting == ()
    world.end_pods()
    replica.watch()
    assert replica.ask("fits").fitting == ("n1",)
    assert replica.ask("more").fitting == ("n1",)
    assert replica.ask("too-much").fitting == ()


def test_a_pod_for_which_others_leave_waits_for_their_node() -> None:
    """Else they would have been evicted in vain."""
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.run_pod("other", "n2", "0", (100, 32), priority=2000)
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    del world.pods["other"]
    replica.watch()
    found = replica.ask("prod")
    assert found.fitting == ()
    assert found.failed["n2"] == ELSEWHERE.reason


def test_victims_that_are_not_needed_any_more_stay() -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)

    def die_after_first(verb: str) -> None:
        if verb == "evict" and len(world.evicted) == 1:
            raise KeyboardInterrupt

    world.after = die_after_first
    replica = Replica(world)
    replica.ask("prod")
    with pytest.raises(KeyboardInterrupt):
        replica.wait()
    world.after = lambda _verb: None
    del world.pods["batch-0b"]  # it ended by itself
    successor = Replica(world, new=True)
    successor.wait()
    assert world.evicted == ["batch-0a"]


# --- kube-scheduler's own victims ---------------------------------------------------------


def test_victims_by_totals_are_replaced_by_those_of_one_card() -> None:
    """The node is full: kube-scheduler takes any two pods, and no card would have room."""
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)
    assert replica.preempt("prod", n1=["batch-0a", "batch-1a"])
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]
    assert replica.preempt("prod", n1=["batch-1a", "batch-1b"])
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]
    finish(world, replica, "prod")
    assert replica.results == ["nominated", "bound"]


def test_victims_that_free_processors_too_are_kept() -> None:
    world = full_node()
    world.pods["batch-1a"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)
    assert replica.preempt("prod", n1=["batch-0a", "batch-1a"])
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b", "batch-1a"]
    # Also by the next leader, though the cards suffice without the last one.
    condition = world.condition("prod")
    assert condition is not None
    assert '"all":true' in condition["message"]


@pytest.mark.parametrize("budgets", [{"app": 0}, {"app": 1, "tier": 1}])
def test_nobody_is_evicted_if_a_pod_that_frees_processors_cannot_be(
    budgets: dict[str, int],
) -> None:
    world = full_node()
    world.pods["batch-1a"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    world.pods["batch-1a"]["metadata"]["labels"] = dict.fromkeys(budgets, "x")
    for label, allowed in budgets.items():
        world.add_budget(label, allowed, **{label: "x"})
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)
    assert replica.preempt("prod", n1=["batch-0a", "batch-1a"])
    replica.wait()
    assert world.calls == []
    assert replica.results == ["budgets"]


def test_processors_of_pods_that_end_anyway_count() -> None:
    world = full_node()
    for name in ("batch-0b", "batch-1a"):
        world.pods[name]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    world.evict("default", "batch-1a", "u-batch-1a")
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)
    assert replica.preempt("prod", n1=["batch-0a", "batch-0b"])
    replica.wait()
    assert world.evicted == ["batch-1a", "batch-1b"]


def test_a_node_is_compared_with_all_that_must_leave_it() -> None:
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 2))
    world.run_pod("n2-batch", "n2", "0", (100, 32), priority=0)
    world.run_pod("n2-more", "n2", "1", (50, 8), priority=5, cpu="8")
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.ask("prod", ["n1"])
    assert replica.preempt("prod", n2=["n2-batch", "n2-more"])
    replica.wait()
    assert world.evicted == ["batch-0a"]


def test_victims_that_free_processors_are_evicted_although_a_card_has_room() -> None:
    world = World(make_node("n1", 1))
    world.run_pod("batch", "n1", "0", (10, 1), priority=1, cpu="8")
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    assert replica.preempt("prod", n1=["batch"])
    replica.wait()
    assert world.evicted == ["batch"]


@pytest.mark.parametrize(
    "victims", [{"n1": ["web"]}, {"n1": ["batch-0a", "web"]}, {"other": ["batch-0a"]}, {}]
)
def test_victims_that_are_no_gpu_pods_are_left_to_kube_scheduler(
    victims: dict[str, list[str]],
) -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    assert not Replica(world).preempt("prod", **victims)
    assert preempting(world).preempt("prod", **victims)  # not once others leave for it


@pytest.mark.parametrize(("priority", "victim"), [(0, "n2-batch"), (2, "batch-0a")])
def test_nodes_by_cards_and_nodes_by_totals_are_compared(priority: int, victim: str) -> None:
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.run_pod("n2-batch", "n2", "0", (100, 32), priority=priority)
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.ask("prod", ["n1"])
    assert replica.preempt("prod", n2=["n2-batch"])
    replica.wait()
    assert world.evicted == [victim]


def test_of_many_nodes_those_count_too_that_kube_scheduler_has_not_asked_about_yet() -> None:
    world = full_node()
    world.nodes = (*world.nodes, *(make_node(f"n{number}", 1) for number in range(2, 101)))
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    for _ in range(5):
        replica.ask("prod", ["n1"])
        replica.wait(5)
    assert world.calls == []
    assert set(replica.results) == {"elsewhere"}
    assert replica.ask("prod", ["n2"]).fitting == ("n2",)
    for _ in range(5):
        replica.ask("prod", ["n1"])
        replica.wait(5)
    assert world.calls == []
    # Another filter of kube-scheduler keeps the pod from all of them.
    replica.wait(5)
    replica.wait(5)
    assert world.evicted == ["batch-0a"]


def test_of_many_nodes_few_sets_are_checked_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of all sets of all nodes would take half a minute for one pod."""
    world = World(*(make_node(f"n{number}", 4) for number in range(50)))
    for number in range(50):
        for card, letter in product("0123", "abcd"):
            size = 20 + (number + ord(letter) + int(card)) % 4
            world.run_pod(f"batch-{number}{card}{letter}", f"n{number}", card, (size, 4))
    world.add("prod", (50, 8), priority=1000, inits=[(90, 20)], sidecars=[(30, 4)])
    checks = count()

    def check(*args: Any) -> bool:
        next(checks)
        return fits_surely(*args)

    monkeypatch.setattr("placement.cluster.preemption.fits_surely", check)
    assert preempting(world).results == ["nominated"]
    assert next(checks) <= 10_000 + 50 * (16 + 2)


def test_kube_scheduler_is_made_to_ask_again_once_the_room_is_free() -> None:
    """It may have asked before the watch showed the victims' end, and nothing else may happen."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    replica.wait()
    assert world.calls == [("patch", "prod"), ("evict", "batch-0a")]
    world.end_pods()
    replica.watch()
    for _ in range(8):
        replica.wait()
    assert world.calls[2:] == [("patch", "prod")] * 2  # after 1 and 6 seconds
    nominated = world.condition("prod")
    assert nominated is not None
    assert nominated["status"] == "True"
    assert replica.ask("prod").fitting == ("n1",)


# --- budgets ----------------------------------------------------------------------------


def test_a_budget_protects_pods_and_the_next_set_is_taken() -> None:
    world = full_node()
    for name in ("batch-0a", "batch-0b"):
        world.pods[name]["metadata"]["labels"] = {"app": "x"}
    world.pods["batch-1a"]["spec"]["priority"] = 5
    world.pods["batch-1b"]["spec"]["priority"] = 5
    world.add_budget("x", 1, app="x")
    world.add("prod", (100, 0), priority=1000)
    preempting(world)
    assert world.evicted == ["batch-1a", "batch-1b"]


def test_a_pod_with_two_budgets_is_no_victim() -> None:
    """The Eviction API evicts none."""
    world = full_node()
    world.pods["batch-0a"]["metadata"]["labels"] = {"app": "x", "tier": "y"}
    world.add_budget("x", 1, app="x")
    world.add_budget("y", 1, tier="y")
    world.add("prod", (60, 4), priority=1000)
    preempting(world)
    assert world.evicted == ["batch-0b"]


def test_victims_with_a_budget_are_evicted_first() -> None:
    """They may be refused; then nobody else has been evicted in vain."""
    world = full_node(cards=1)
    world.pods["batch-0b"]["metadata"]["labels"] = {"app": "x"}
    world.add_budget("x", 1, app="x")
    world.add("prod", (100, 0), priority=1000)
    preempting(world)
    assert world.evicted == ["batch-0b", "batch-0a"]


def test_a_pod_that_only_budgets_keep_waiting_is_looked_at_again() -> None:
    world = full_node()
    for each in world.pods.values():
        each["metadata"]["labels"] = {"app": "x"}
    world.add_budget("x", 0, app="x")
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    assert replica.results == ["budgets"]
    world.budgets[0]["status"]["disruptionsAllowed"] = 1
    replica.wait(6)
    assert world.evicted == ["batch-0a"]


def test_a_pod_about_which_kube_scheduler_asks_no_more_is_not_looked_at_for_ever() -> None:
    """Its other filters may have changed meanwhile."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)

    def fail(verb: str) -> None:
        if verb == "list":
            raise Unavailable("API server: no response in time")

    world.before = fail
    replica = preempting(world)
    for _ in range(20):
        replica.wait(5)
    assert replica.results == ["unavailable"] * 13  # in a minute
    world.before = lambda _verb: None
    replica.wait(5)
    assert world.calls == []
    replica.ask("prod")
    replica.wait()
    assert world.evicted == ["batch-0a"]


def test_a_first_eviction_that_is_refused_leads_to_another_set() -> None:
    """A budget may change after it was read."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    refused: list[str] = []

    def refuse(verb: str) -> None:
        if verb == "evict" and not refused:
            refused.append(verb)
            raise TooManyRequests("API server: 429 Cannot evict pod")

    world.before = refuse
    replica = preempting(world)
    assert world.evicted == []
    assert world.condition("prod") is None
    assert world.pods["prod"]["status"]["nominatedNodeName"] is None
    replica.wait(6)
    assert world.evicted == ["batch-0b"]
    assert replica.results == ["refused", "nominated", "nominated"]


def test_a_pod_whose_eviction_was_refused_is_a_victim_again_half_a_minute_later() -> None:
    world = full_node(cards=1)
    world.add("prod", (100, 0), priority=1000)

    def refuse(verb: str) -> None:
        if verb == "evict":
            raise TooManyRequests("API server: 429 Cannot evict pod")

    world.before = refuse
    replica = preempting(world)
    world.before = lambda _verb: None
    replica.wait(29)
    assert replica.results == ["refused", "nominated", "none"]
    replica.ask("prod")
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_a_later_eviction_that_is_refused_is_tried_again_because_the_first_is_done() -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    attempts = count()

    def refuse(verb: str) -> None:
        if verb == "evict" and next(attempts) in {1, 2}:
            raise TooManyRequests("API server: 429 Cannot evict pod")

    world.before = refuse
    replica = preempting(world)
    assert world.evicted == ["batch-0a"]
    replica.wait()
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_a_victim_that_is_gone_does_not_hold_up_the_others() -> None:
    world = full_node(cards=1)
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)
    replica.ask("prod")
    del world.pods["batch-0a"]
    replica.wait()
    assert world.evicted == ["batch-0b"]


def test_a_replica_that_stops_to_lead_evicts_nobody_more() -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)

    def stop(verb: str) -> None:
        replica.leads = verb != "evict"

    world.after = stop
    replica.ask("prod")
    replica.wait()
    assert world.evicted == ["batch-0a"]


def test_an_eviction_whose_response_is_lost_counts_as_done() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    lost = count()

    def lose(verb: str) -> None:
        if verb == "evict" and not next(lost):
            raise Unavailable("API server: no response in time")

    world.after = lose
    replica = preempting(world)
    for _ in range(10):
        replica.ask("prod")
        replica.wait()
    assert world.evicted == ["batch-0a"]
    finish(world, replica, "prod")
    assert replica.results == ["nominated", "bound"]


def test_a_nomination_whose_response_is_lost_counts_as_written() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    lost = count()

    def lose(verb: str) -> None:
        if verb == "patch" and not next(lost):
            raise Unavailable("API server: no response in time")

    world.after = lose
    replica = preempting(world)
    for _ in range(10):
        replica.ask("prod")
        replica.wait()
    assert world.evicted == ["batch-0a"]
    assert world.calls.count(("patch", "prod")) == 1


# --- ends -------------------------------------------------------------------------------


def test_cards_are_not_kept_for_ever() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    world.add("batch", (50, 4), policy="Never")
    replica = preempting(world)
    world.end_pods()
    replica.watch()
    assert replica.ask("batch").fitting == ()
    world.pods["prod"]["status"]["nominatedNodeName"] = "n9"  # by kube-scheduler
    replica.wait(91)
    assert replica.results == ["nominated", "expired"]
    assert world.condition("prod") is None
    assert world.pods["prod"]["status"]["nominatedNodeName"] == "n9"
    assert replica.ask("batch").fitting == ("n1",)


@pytest.mark.parametrize(
    ("error", "removed"),
    [
        (Rejected(409, "the object has been modified"), True),
        (Unavailable("API server: no response in time"), True),
        (Rejected(422, "the pod is invalid"), False),
    ],
)
def test_a_condition_is_removed_by_the_next_step_if_that_may_help(
    error: Exception, *, removed: bool
) -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    world.end_pods()
    replica.watch()
    replica.bind("prod", "n1")

    def fail(verb: str) -> None:
        if verb == "patch":
            raise error

    world.before = fail
    replica.preemption.step()
    world.before = lambda _verb: None
    replica.preemption.step()
    assert (world.condition("prod") is None) == removed


def test_victims_are_not_evicted_over_and_over_for_a_pod_that_does_not_use_their_room() -> None:
    """Its gang may never be complete, or its volume never provisioned."""
    world = full_node(cards=1)
    world.add("prod", (100, 0), priority=1000)
    replica = Replica(world)
    for number in range(1800):
        for name in world.end_pods():
            world.add(f"{name}-{number}", (40, 8), priority=1, policy="Never", owner="batch")
        replica.watch()
        for name in [each for each in world.pods if each != "prod"]:
            if not world.pods[name]["spec"].get("nodeName") and replica.ask(name).fitting:
                replica.bind(name, "n1")
        replica.ask("prod")
        replica.wait()
    assert replica.results.count("expired") == 3
    assert len(world.evicted) == 2 * 3


def test_cards_are_not_kept_for_a_pod_that_is_gone() -> None:
    world = full_node()
    world.add("prod", (100, 0), priority=1000)
    world.add("batch", (50, 4), policy="Never")
    replica = preempting(world)
    world.end_pods()
    del world.pods["prod"]
    replica.watch()
    assert replica.ask("batch").fitting == ("n1",)
    replica.wait()
    assert replica.state.nominated == 0


def test_nobody_leaves_for_a_pod_that_is_being_deleted() -> None:
    """Pods of Jobs have a finalizer, so they stay for a while."""
    world = full_node(cards=1)
    world.add("prod", (100, 0), priority=1000)
    world.add("batch", (50, 4), policy="Never")
    attempts = count()

    def refuse(verb: str) -> None:
        if verb == "evict" and next(attempts) == 1:
            raise TooManyRequests("API server: 429 Cannot evict pod")

    world.before = refuse
    replica = preempting(world)
    assert world.evicted == ["batch-0a"]
    world.end_pods()
    world.pods["prod"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    replica.watch()
    assert replica.ask("batch").fitting == ("n1",)
    replica.wait()
    assert world.evicted == ["batch-0a"]


@pytest.mark.parametrize(
    ("grace", "seconds"), [(-(2**63), 60), (-3600, 60), (0, 60), (10**12, 3660), (2**63 - 1, 3660)]
)
def test_cards_are_kept_for_an_hour_at_most_whatever_grace_period_a_victim_has(
    grace: int, seconds: int
) -> None:
    """The API server checks neither bound, and takes a negative one for 1."""
    world = full_node(cards=1)
    for each in world.pods.values():
        each["spec"]["terminationGracePeriodSeconds"] = grace
    world.add("prod", (60, 4), priority=1000)

    def refuse(verb: str) -> None:
        if verb == "evict":
            raise Unavailable("API server: no response in time")

    world.before = refuse
    replica = preempting(world)
    assert replica.results == ["nominated"]
    replica.wait(seconds)
    assert replica.results == ["nominated"]
    replica.wait()
    assert replica.results[1] == "expired"


def test_room_that_a_higher_pod_takes_is_given_up_and_found_anew() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    world.add("higher", (60, 4), priority=2000)
    replica = preempting(world)
    world.end_pods()
    replica.watch()
    assert replica.ask("higher").fitting == ("n1",)
    replica.bind("higher", "n1")
    replica.wait()
    assert replica.results == ["nominated", "lost"]
    replica.wait(6)
    assert world.evicted == ["batch-0a", "batch-1a"]


def test_a_pod_without_known_cards_is_no_victim() -> None:
    world = World(make_node("n1", 1))
    world.add("unknown", (50, 4), node="n1", phase="Running")
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    assert replica.results == ["none"]


def test_a_pod_that_is_being_bound_is_no_victim() -> None:
    world = World(make_node("n1", 1))
    world.add("binding", (60, 4), priority=0)
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.assume("binding", "n1")
    replica.ask("prod")
    replica.wait()
    assert replica.results == ["none"]


def test_a_static_pod_is_no_victim() -> None:
    world = full_node(cards=1)
    for each in world.pods.values():
        each["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    world.add("prod", (60, 4), priority=1000)
    assert preempting(world).results == ["none"]


def test_a_replica_that_does_not_lead_evicts_nobody_and_keeps_the_cards() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    world.add("batch", (50, 4), policy="Never")
    follower = Replica(world)
    follower.leads = False
    follower.ask("prod")
    follower.wait()
    assert world.calls == []
    preempting(world)
    world.end_pods()
    follower.watch()
    assert follower.ask("batch").fitting == ()
    assert follower.ask("prod").fitting == ("n1",)


def test_a_replica_that_begins_to_lead_forgets_what_it_was_asked_before() -> None:
    """It may be long ago; kube-scheduler is made to ask again."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.leads = False
    replica.ask("prod")
    replica.wait()
    replica.leads = True
    replica.wait()
    assert set(world.calls) == {("patch", "prod")}
    replica.ask("prod")
    replica.wait()
    assert world.evicted == ["batch-0a"]


def test_a_replica_that_stops_to_lead_while_it_looks_writes_nothing() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)

    def stop(verb: str) -> None:
        replica.leads = replica.leads and verb != "list"

    world.before = stop
    replica.ask("prod")
    replica.wait()
    assert world.calls == []


def test_what_changes_while_budgets_are_read_is_looked_at_anew() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)

    def end_one(verb: str) -> None:
        if verb == "list":
            del world.pods["batch-1b"]
            replica.watch()

    world.before = end_one
    replica.ask("prod")
    replica.wait()
    assert world.evicted == []
    assert replica.results == ["waits"]


def test_a_pod_that_goes_while_its_nomination_is_written_costs_nobody() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)

    def go(verb: str) -> None:
        if verb == "patch":
            del world.pods["prod"]
            replica.watch()

    world.after = go
    replica.ask("prod")
    replica.wait()
    assert world.evicted == []
    assert replica.state.nominated == 0


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("metadata", {"deletionTimestamp": "2027-01-15T08:00:30Z"}),
        ("metadata", {"uid": "u-another"}),
        ("spec", {"nodeName": "n9"}),
    ],
)
def test_nobody_is_evicted_for_a_pod_that_changes_before_the_watch_shows_it(
    part: str, change: dict[str, str]
) -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.ask("prod")
    world.pods["prod"][part] |= change
    replica.wait()
    assert world.calls == []
    assert replica.results == []


def test_nobody_is_evicted_for_a_pod_that_is_being_bound() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)
    replica.ask("prod")
    replica.assume("prod", "n1")
    replica.wait()
    assert world.calls == []


def test_a_nomination_does_not_end_while_its_pod_is_being_bound() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    world.end_pods()
    replica.watch()
    replica.assume("prod", "n1")
    replica.wait(1000)
    assert replica.results == ["nominated"]


def test_a_nomination_waits_for_an_agent_that_is_away_for_a_moment() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = preempting(world)
    connected, away = world.nodes[0], make_node("n1", 2, allocatable="0")
    replica.state.put_node(away)
    replica.wait()
    replica.state.put_node(connected)
    finish(world, replica, "prod")
    assert replica.results == ["nominated", "bound"]
    assert world.evicted == ["batch-0a"]


def test_what_a_replica_has_withdrawn_is_left_to_the_next_leader() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    world.add("higher", (60, 4), priority=2000)
    first, second = preempting(world), Replica(world)
    second.leads = False
    world.end_pods()
    first.watch()
    first.bind("higher", "n1")

    def fail(verb: str) -> None:
        if verb == "patch":
            raise Unavailable("API server: no response in time")

    world.before = fail
    first.wait()
    assert first.results == ["nominated", "lost"]
    world.before = lambda _verb: None
    first.leads, second.leads = False, True
    first.wait()
    second.watch()
    second.wait()
    second.ask("prod")
    second.wait()
    nominated = world.condition("prod")
    assert second.results == ["lost", "nominated"]
    first.watch()
    first.leads, second.leads = True, False
    first.wait()
    assert world.condition("prod") == nominated
    assert first.state.nominated == 1
    assert world.evicted == ["batch-0a", "batch-1a"]


def test_nothing_is_written_by_a_replica_that_stops_to_lead_while_it_reads_the_pod() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    replica = Replica(world)

    def lose(verb: str) -> None:
        if verb == "get":
            replica.leads = False

    world.before = lose
    replica.ask("prod")
    replica.wait()
    assert world.calls == []


def test_a_nomination_that_another_program_wrote_evicts_nobody_of_the_same_priority() -> None:
    world = full_node()
    world.add("evil", (100, 0), priority=1)
    nomination = Nomination("n1", {"c0": (0,)}, ("u-batch-0a", "u-batch-0b"), 2_000_000_000)
    world.pods["evil"]["status"]["conditions"] = [nomination.as_condition(START)]
    replica = Replica(world)
    replica.wait()
    assert world.evicted == []
    assert world.condition("evil") is None
    assert replica.results == ["lost"]


def test_equal_pods_are_looked_at_once_if_nobody_could_leave_for_them() -> None:
    world = full_node()
    for number in range(3):
        world.add(f"prod-{number}", (100, 0), priority=1)
    replica = Replica(world)
    for number in range(3):
        replica.ask(f"prod-{number}")
    replica.wait()
    assert replica.results == ["none"] * 3


def test_equal_pods_with_other_nodes_are_looked_at_each() -> None:
    world = full_node()
    world.nodes = (*world.nodes, make_node("n2", 1))
    world.run_pod("vip", "n2", "0", (100, 32), priority=2000)
    for name in ("prod-1", "prod-2"):
        world.add(name, (100, 0), priority=1000)
    replica = Replica(world)
    replica.ask("prod-1", ["n2"])
    replica.ask("prod-2", ["n1"])
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_the_highest_priority_comes_first() -> None:
    world = full_node(cards=1)
    world.add("prod", (100, 0), priority=10)
    world.add("higher", (100, 0), priority=1000)
    replica = Replica(world)
    replica.ask("prod")
    replica.ask("higher")
    replica.wait()
    assert world.condition("higher") is not None
    assert world.condition("prod") is None


def test_a_step_that_takes_long_leaves_the_rest_to_the_next_one() -> None:
    """Nominations and the lease are looked at between two steps."""
    world = full_node()
    for name in ("prod-1", "prod-2"):
        world.add(name, (100, 0), priority=1000)
    replica = Replica(world)

    def take_time(_verb: str) -> None:
        replica.time += 1

    world.after = take_time
    replica.ask("prod-1")
    replica.ask("prod-2")
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b", "batch-1a", "batch-1b"]


def test_of_too_many_pods_the_oldest_wait_until_kube_scheduler_asks_again() -> None:
    world = full_node()
    for number in range(1001):
        world.add(f"prod-{number}", (60, 4), priority=1)
    replica = Replica(world)
    for name in world.pods:
        if name.startswith("prod"):
            replica.ask(name)
    replica.wait()
    assert len(replica.results) == 1000


def test_no_victims_are_looked_for_where_no_end_of_pods_would_help() -> None:
    world = full_node()
    world.add("huge", (300, 0), priority=1000)
    replica = Replica(world)
    found = replica.ask("huge")
    assert found.unresolvable.keys() == {"n1"}
    replica.wait()
    assert replica.results == []


def test_a_write_that_conflicts_is_tried_again() -> None:
    """kube-scheduler writes into the pod's status at the same time."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    conflicts = count()

    def conflict(verb: str) -> None:
        if verb == "patch" and next(conflicts) < 2:
            raise Rejected(409, "the object has been modified")

    world.before = conflict
    preempting(world)
    assert world.evicted == ["batch-0a"]


def test_a_condition_that_another_program_wrote_is_passed_over() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    right = '{"node":"n1","cards":{"c0":"0"},"victims":[],"until":"2027-01-15T08:01:31Z"}'
    condition = {"type": "gpu-turnstile.io/CardsNominated", "status": "True", "message": right}
    for change, nominated in (
        ({}, 1),
        ({"type": "example.org/CardsNominated"}, 0),
        ({"status": "False"}, 0),
        ({"message": ""}, 0),
        ({"message": "[]"}, 0),
        ({"message": '{"node":"n1"}'}, 0),
        ({"message": right.replace('"0"', '"x"')}, 0),
        ({"message": right.replace('"0"', "0")}, 0),
        ({"message": right.replace("2027", "soon")}, 0),
    ):
        world.pods["prod"]["status"]["conditions"] = [condition | change]
        assert Replica(world).state.nominated == nominated


# --- two pods, and killed replicas --------------------------------------------------------


def finish(world: World, replica: Replica, *pods: str) -> None:
    """Let victims end, and pods be bound, until all are."""
    for _ in range(12):
        replica.wait(5)
        world.end_pods()
        replica.watch()
        for name in pods:
            if not world.pods[name]["spec"].get("nodeName"):
                fitting = replica.ask(name).fitting
                if fitting:
                    replica.bind(name, fitting[0])


def test_a_new_leader_lets_kube_scheduler_ask_again_about_pods_that_may_preempt() -> None:
    """The leader before was killed before it had looked for victims; nothing else happens."""
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    world.add("never", (60, 4), priority=1000, policy="Never")
    world.add("batch", (60, 4), priority=1)
    Replica(world).ask("prod")
    assert world.calls == []
    successor = Replica(world, new=True)
    successor.leads = False
    successor.wait()
    assert world.calls == []
    successor.leads = True
    world.pods["prod"]["status"]["nominatedNodeName"] = "n9"  # by kube-scheduler
    successor.wait()
    assert world.calls == [("patch", "prod")] * 2
    assert world.pods["prod"]["status"]["nominatedNodeName"] == "n9"
    assert world.condition("prod") is None
    successor.wait()
    assert world.calls == [("patch", "prod")] * 2


def test_of_many_pods_kube_scheduler_is_made_to_ask_about_the_highest_again() -> None:
    world = full_node()
    for number in range(101):
        world.add(f"prod-{number}", (60, 4), priority=1000 + number)
    Replica(world, new=True).wait()
    asked = {name for _, name in world.calls}
    assert len(asked) == 100
    assert "prod-0" not in asked


def test_a_nomination_is_not_removed_with_what_made_kube_scheduler_ask_again() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    attempts = count()

    def fail_second(verb: str) -> None:
        if verb == "patch" and next(attempts) == 1:
            raise Unavailable("API server: no response in time")

    world.before = fail_second
    successor = Replica(world, new=True)
    successor.ask("prod")
    successor.wait()
    assert world.evicted == ["batch-0a"]
    successor.wait()
    nominated = world.condition("prod")
    assert nominated is not None
    assert nominated["status"] == "True"


def test_a_nomination_whose_write_was_not_answered_is_not_removed_either() -> None:
    world = full_node()
    world.add("prod", (60, 4), priority=1000)
    attempts = count()

    def lose_two(verb: str) -> None:
        if verb == "patch" and next(attempts) in (1, 2):
            raise Unavailable("API server: no response in time")

    world.after = lose_two  # of the removal of what made kube-scheduler ask, and of the nomination
    successor = Replica(world, new=True)
    successor.ask("prod")
    successor.wait()
    assert successor.results == ["unavailable"]
    successor.wait()
    assert world.evicted == ["batch-0a"]
    nominated = world.condition("prod")
    assert nominated is not None
    assert nominated["status"] == "True"


def test_a_new_leader_does_not_touch_pods_that_wait_in_a_queue() -> None:
    world = full_node()
    for number in range(100):
        world.add(f"gated-{number}", (60, 4), priority=1000)
        world.pods[f"gated-{number}"]["spec"]["schedulingGates"] = [{"name": "kueue"}]
    world.add("prod", (60, 4), priority=1000, uid="u-z")
    replica = Replica(world, new=True)
    replica.wait()
    assert world.calls == [("patch", "prod")] * 2


def test_two_pods_at_once_get_two_sets() -> None:
    world = full_node()
    world.add("prod-1", (100, 0), priority=1000)
    world.add("prod-2", (100, 0), priority=1000)
    replica = Replica(world)
    replica.ask("prod-1")
    replica.ask("prod-2")
    replica.wait()
    assert sorted(world.evicted) == ["batch-0a", "batch-0b", "batch-1a", "batch-1b"]
    finish(world, replica, "prod-1", "prod-2")
    assert replica.results.count("bound") == 2
    assert len(world.evicted) == 4


class KilledError(BaseException):
    """The process ends within a request, which was carried out or not."""


faults = st.tuples(
    st.sampled_from(["before", "after"]), st.sampled_from([KilledError, Unavailable])
)


@given(st.dictionaries(st.integers(0, 14), faults, max_size=4))
@settings(max_examples=150, deadline=None)
def test_nobody_is_evicted_in_vain_whatever_fails(
    faulty: dict[int, tuple[str, type[BaseException]]],
) -> None:
    world = full_node(cards=3)
    world.add("prod-1", (100, 0), priority=1000)
    world.add("prod-2", (100, 0), priority=1000)
    world.add("thief", (40, 8), priority=1, policy="Never")  # as a replacement of a victim
    requests = count()

    def fail(when: str) -> None:
        at, kind = faulty.get(next(requests), ("", KilledError))
        if at == when:
            raise kind

    world.before, world.after = lambda _: fail("before"), lambda _: fail("after")
    replica = Replica(world)
    for _ in range(12):
        try:
            for name in ("thief", "prod-1", "prod-2"):
                if not world.pods[name]["spec"].get("nodeName"):
                    fitting = replica.ask(name).fitting
                    if fitting:
                        replica.bind(name, fitting[0])
            replica.wait(5)
        except KilledError:
            replica = Replica(world, new=True)
        world.end_pods()
        replica.watch()
    assert "nodeName" not in world.pods["thief"]["spec"]
    assert {world.pods[each]["spec"].get("nodeName") for each in ("prod-1", "prod-2")} == {"n1"}
    assert len(world.evicted) == 4
    assert world.condition("prod-1") is world.condition("prod-2") is None
