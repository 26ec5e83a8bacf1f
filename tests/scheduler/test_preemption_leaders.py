"""Preemption by card with several replicas: only the leader writes, and the next one goes on."""

from itertools import count, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import Unavailable
from scheduler import preemption
from scheduler.nominations import Nomination
from tests.agent.builders import raising
from tests.examples import share
from tests.scheduler.eviction_world import LOST, START, Replica, full_node, on, preempting


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
