"""Preemption by card: evictions, budgets, requests that fail, and several replicas."""

from itertools import count, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from placement.cluster.nominations import Nomination
from scheduler import preemption
from tests.agent.builders import raising
from tests.examples import share
from tests.scheduler.eviction_world import (
    CONFLICT,
    LOST,
    REFUSED,
    START,
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


# --- several replicas: only the leader writes ---------------------------------------------


def test_a_replica_that_does_not_lead_evicts_no_pod_and_keeps_the_cards() -> None:
    world = full_node()
    world.add("batch", (50, 4), policy="Never")
    follower = Replica(world)
    follower.leads = False
    follower.try_pods("prod")
    assert world.calls == []
    preempting(world)
    follower.end_pods()
    assert follower.nodes_for("batch") == ()
    assert follower.nodes_for("prod") == ("n1",)


def test_a_replica_that_begins_to_lead_forgets_earlier_requests() -> None:
    """They may be old; kube-scheduler is made to ask again."""
    world = full_node()
    replica = Replica(world)
    replica.leads = False
    replica.try_pods("prod")
    replica.leads = True
    replica.wait()
    assert set(world.calls) == {("patch", "prod")}
    replica.try_pods("prod")
    assert world.evicted == ["batch-0a"]


@pytest.mark.parametrize(
    ("verb", "calls"),
    [("list", []), ("get", []), ("evict", [("patch", "prod"), ("evict", "batch-0a")])],
)
def test_a_replica_that_stops_to_lead_writes_nothing_further(
    verb: str, calls: list[tuple[str, str]]
) -> None:
    world = full_node(prod=(100, 0))
    replica = Replica(world)
    world.before = on(verb, lambda: setattr(replica, "leads", False))
    replica.try_pods("prod")
    assert world.calls == calls


def test_a_nomination_that_another_program_wrote_evicts_no_pod_of_the_same_priority() -> None:
    world = full_node(prod=None)
    world.add("evil", (100, 0), priority=1)
    nomination = Nomination("n1", {"c0": (0,)}, ("u-batch-0a", "u-batch-0b"), 2_000_000_000)
    world.pods["evil"]["status"]["conditions"] = [nomination.as_condition(START)]
    replica = Replica(world)
    replica.wait()
    assert world.evicted == []
    assert world.condition("evil") is None
    assert replica.results == ["lost"]


# --- a new leader ------------------------------------------------------------------------


def test_a_new_leader_lets_kube_scheduler_ask_again_about_pods_that_may_preempt() -> None:
    """The leader before was killed before it had looked for victims; nothing else happens."""
    world = full_node()
    world.add("never", (60, 4), priority=1000, policy="Never")
    world.add("batch", (60, 4), priority=1)
    Replica(world).filter("prod")
    assert world.calls == []
    successor = Replica(world, new=True)
    successor.leads = False
    successor.wait()
    assert world.calls == []
    successor.leads = True
    world.pods["prod"]["status"]["nominatedNodeName"] = "n9"  # by kube-scheduler
    for _ in range(2):
        successor.wait()
        assert world.calls == [("patch", "prod")] * 2
    assert world.pods["prod"]["status"]["nominatedNodeName"] == "n9"
    assert world.condition("prod") is None


def test_of_many_pods_kube_scheduler_is_made_to_ask_about_the_highest_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods that wait in a queue do not count, however high."""
    monkeypatch.setattr(preemption, "_MOST_ASKED_AGAIN", 2)
    world = full_node(prod=None)
    for number in range(3):
        world.add(f"prod-{number}", (60, 4), priority=1000 + number)
        world.add(f"gated-{number}", (60, 4), priority=2000)
        world.pods[f"gated-{number}"]["spec"]["schedulingGates"] = [{"name": "kueue"}]
    Replica(world, new=True).wait()
    assert {name for _, name in world.calls} == {"prod-1", "prod-2"}


@pytest.mark.parametrize(("when", "lost"), [("before", [1]), ("after", [1, 2])])
def test_a_nomination_is_not_removed_with_what_made_kube_scheduler_ask_again(
    when: str, lost: list[int]
) -> None:
    """Whether the removal of that fails, or it and the nomination are done without a response."""
    world = full_node()
    setattr(world, when, on("patch", raising(LOST), *lost))
    successor = Replica(world, new=True)
    successor.try_pods("prod")
    successor.wait()
    assert world.evicted == ["batch-0a"]
    assert world.is_nominated("prod")


# --- killed replicas and failing requests ----------------------------------------------------


class KilledError(BaseException):
    """The process ends within a request, which was carried out or not."""


Fault = tuple[str, type[BaseException]]
FAULTS: list[Fault] = list(product(("before", "after"), (KilledError, Unavailable)))
numbers = st.integers(0, 14)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[1].__name__} {fault[0]}")
@given(numbers, st.dictionaries(numbers, st.sampled_from(FAULTS), max_size=3))
@example(99, {})  # none
@settings(max_examples=share(63), deadline=None)
def test_no_pod_is_evicted_in_vain_whatever_fails(
    fault: Fault, number: int, others: dict[int, Fault]
) -> None:
    faulty = {**others, number: fault}
    world = full_node(cards=3, prod=None)
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
            replica.bind_if_possible("thief", "prod-1", "prod-2")
            replica.wait(5)
        except KilledError:
            replica = Replica(world, new=True)
        replica.end_pods()
    assert "nodeName" not in world.pods["thief"]["spec"]
    assert {world.pods[each]["spec"].get("nodeName") for each in ("prod-1", "prod-2")} == {"n1"}
    assert len(world.evicted) == 4
    assert world.condition("prod-1") is world.condition("prod-2") is None
