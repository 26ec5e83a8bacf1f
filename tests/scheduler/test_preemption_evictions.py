"""Preemption by card: evictions, budgets, and requests that fail."""

import pytest

from common.apiserver.errors import Rejected
from tests.agent.builders import raising
from tests.scheduler.eviction_world import (
    CONFLICT,
    LOST,
    REFUSED,
    Replica,
    full_node,
    on,
    preempting,
)


def test_the_nomination_is_written_before_the_first_eviction() -> None:
    world = full_node(prod=(100, 0))
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


def test_events_name_pods_of_their_own_namespace_only() -> None:
    world = full_node(prod=(100, 0))
    world.pods["batch-0b"]["metadata"]["namespace"] = "team-b"
    preempting(world)
    events = [
        (each["involvedObject"]["name"], each["reason"], each["type"]) for each in world.events
    ]
    assert events == [
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


def test_victims_that_are_not_needed_any_more_stay() -> None:
    world = full_node(prod=(100, 0))
    world.after = on("evict", raising(KeyboardInterrupt()), 0)
    with pytest.raises(KeyboardInterrupt):
        preempting(world)
    del world.pods["batch-0b"]  # it ended by itself
    Replica(world, new=True).wait()
    assert world.evicted == ["batch-0a"]


# --- budgets ----------------------------------------------------------------------------


def test_a_pod_with_two_budgets_is_no_victim() -> None:
    """The Eviction API evicts none."""
    world = full_node()
    world.pods["batch-0a"]["metadata"]["labels"] = {"app": "x", "tier": "y"}
    world.add_budget("x", 1, app="x")
    world.add_budget("y", 1, tier="y")
    preempting(world)
    assert world.evicted == ["batch-0b"]


def test_victims_with_a_budget_are_evicted_first() -> None:
    """They may be refused; then no other pod has been evicted in vain."""
    world = full_node(cards=1, prod=(100, 0))
    world.pods["batch-0b"]["metadata"]["labels"] = {"app": "x"}
    world.add_budget("x", 1, app="x")
    preempting(world)
    assert world.evicted == ["batch-0b", "batch-0a"]


def test_a_pod_that_only_budgets_keep_waiting_is_tried_again() -> None:
    world = full_node()
    for each in world.pods.values():
        each["metadata"]["labels"] = {"app": "x"}
    world.add_budget("x", 0, app="x")
    replica = preempting(world)
    assert replica.results == ["budgets"]
    world.budgets[0]["status"]["disruptionsAllowed"] = 1
    replica.wait(6)
    assert world.evicted == ["batch-0a"]


def test_a_pod_about_which_kube_scheduler_asks_no_more_is_not_tried_for_ever() -> None:
    """Its other filters may have changed meanwhile."""
    world = full_node()
    world.before = on("list", raising(LOST))
    replica = preempting(world)
    for _ in range(20):
        replica.wait(5)
    assert replica.results == ["unavailable"] * 13  # in a minute
    world.restore()
    replica.wait(5)
    assert world.calls == []
    replica.try_pods("prod")
    assert world.evicted == ["batch-0a"]


# --- requests that fail -------------------------------------------------------------------


def test_a_first_eviction_that_is_refused_leads_to_another_set() -> None:
    """A budget may change after it was read."""
    world = full_node()
    world.before = on("evict", raising(REFUSED), 0)
    replica = preempting(world)
    assert world.evicted == []
    assert world.condition("prod") is None
    assert world.pods["prod"]["status"]["nominatedNodeName"] is None
    replica.wait(6)
    assert world.evicted == ["batch-0b"]
    assert replica.results == ["refused", "nominated", "nominated"]


def test_a_pod_whose_eviction_was_refused_is_a_victim_again_half_a_minute_later() -> None:
    world = full_node(cards=1, prod=(100, 0))
    world.before = on("evict", raising(REFUSED))
    replica = preempting(world)
    world.restore()
    replica.wait(29)
    assert replica.results == ["refused", "nominated", "none"]
    replica.try_pods("prod")
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_a_later_eviction_that_is_refused_is_tried_again_because_the_first_is_done() -> None:
    world = full_node(prod=(100, 0))
    world.before = on("evict", raising(REFUSED), 1, 2)
    replica = preempting(world)
    assert world.evicted == ["batch-0a"]
    replica.wait()
    replica.wait()
    assert world.evicted == ["batch-0a", "batch-0b"]


def test_a_deleted_victim_does_not_delay_the_others() -> None:
    world = full_node(cards=1, prod=(100, 0))
    replica = Replica(world)
    replica.filter("prod")
    del world.pods["batch-0a"]
    replica.wait()
    assert world.evicted == ["batch-0b"]


def test_a_write_that_conflicts_is_tried_again() -> None:
    """kube-scheduler writes into the pod's status at the same time."""
    world = full_node()
    world.before = on("patch", raising(CONFLICT), 0, 1)
    preempting(world)
    assert world.evicted == ["batch-0a"]


@pytest.mark.parametrize(
    ("error", "removed"),
    [(CONFLICT, True), (LOST, True), (Rejected(422, "the pod is invalid"), False)],
)
def test_a_condition_is_removed_by_the_next_step_if_that_may_help(
    error: Exception, *, removed: bool
) -> None:
    world = full_node()
    replica = preempting(world)
    replica.end_pods()
    replica.bind("prod", "n1")
    world.before = on("patch", raising(error))
    replica.preemption.step()
    world.restore()
    replica.preemption.step()
    assert (world.condition("prod") is None) == removed
