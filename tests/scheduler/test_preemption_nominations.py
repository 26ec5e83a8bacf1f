"""Preemption by card: which cards are kept, for whom, and when a nomination ends."""

import pytest

from scheduler.decisions import ELSEWHERE
from tests.agent.builders import raising
from tests.placement.cluster.builders import make_node
from tests.scheduler.eviction_world import (
    LOST,
    REFUSED,
    Replica,
    World,
    full_node,
    on,
    one_card,
    preempting,
)

NOMINATION = '{"node":"n1","cards":{"c0":"0"},"victims":[],"until":"2027-01-15T08:01:31Z"}'


def test_cards_are_kept_until_the_victims_of_others_have_ended_too() -> None:
    slow = ("slow", 50, {"priority": 1, "grace": 300})
    world = one_card(slow, ("quick", 40, {"priority": 2, "grace": 0}))
    world.add("prod-1", (40, 8), priority=1000)
    world.add("prod-2", (50, 8), priority=1000)
    replica = Replica(world)
    for name in ("prod-1", "prod-2"):
        replica.try_pods(name)
    assert world.evicted == ["slow", "quick"]
    replica.delete("quick")
    replica.wait(300)
    assert replica.state.nominated == 2
    replica.finish("prod-1", "prod-2")
    assert replica.results == ["nominated", "nominated", "bound", "bound"]


def test_pods_of_lower_or_equal_priority_do_not_take_the_room_and_higher_ones_may() -> None:
    world = full_node()
    for name, priority in (("lower", 999), ("equal", 1000), ("higher", 1001)):
        world.add(name, (50, 4), priority=priority, policy="Never")
    world.add("tiny", (10, 1), priority=0)
    replica = preempting(world)
    replica.end_pods()
    assert replica.nodes_for("lower") == ()
    assert replica.nodes_for("equal") == ()
    assert replica.nodes_for("tiny") == ("n1",)  # on the other card
    assert replica.nodes_for("higher") == ("n1",)
    world.add("unknown", (50, 4), priority=1001)  # to the watch, which may lag behind
    assert replica.nodes_for("unknown") == ()
    replica.watch()
    assert replica.nodes_for("unknown") == ("n1",)


def test_free_amounts_beside_the_kept_cards_can_be_used_while_victims_end() -> None:
    world = one_card(("batch", 70, {"priority": 1}))
    for name, cores in (("fits", 30), ("more", 40), ("too-much", 41)):
        world.add(name, (cores, 1), priority=0)
    replica = preempting(world)
    assert world.evicted == ["batch"]
    assert replica.nodes_for("fits") == ("n1",)
    assert replica.nodes_for("more") == ()
    replica.end_pods()
    assert replica.nodes_for("more") == ("n1",)
    assert replica.nodes_for("too-much") == ()


def test_a_nominated_pod_waits_for_its_node() -> None:
    """Else its victims would have been evicted in vain."""
    world = full_node()
    world.add_second_node(100, priority=2000)
    replica = preempting(world)
    replica.delete("n2-batch")
    found = replica.filter("prod")
    assert found.fitting == ()
    assert found.failed["n2"] == ELSEWHERE.reason


def test_kube_scheduler_is_made_to_ask_again_once_the_room_is_free() -> None:
    """It may have asked before the watch showed the victims' end, and nothing else may happen."""
    world = full_node()
    replica = preempting(world)
    replica.wait()
    assert world.calls == [("patch", "prod"), ("evict", "batch-0a")]
    replica.end_pods()
    for _ in range(8):
        replica.wait()
    assert world.calls[2:] == [("patch", "prod")] * 2  # after 1 and 6 seconds
    assert world.is_nominated("prod")
    assert replica.nodes_for("prod") == ("n1",)


# --- kube-scheduler asks before the watch shows a release ---------------------------------


@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize("policy", ["Never", "PreemptLowerPriority"])
def test_a_pod_refused_a_moment_before_the_watch_showed_a_release_is_asked_about_again(
    preempts: bool, policy: str
) -> None:
    """kube-scheduler's own watch has shown it before: nothing else may happen for minutes."""
    world = one_card(("batch", 80, {"priority": 2000}))
    world.add("prod", (60, 4), priority=1000, policy=policy)
    replica = Replica(world, preempts=preempts)
    del world.pods["batch"]
    assert not replica.nodes_for("prod")
    replica.watch()
    replica.wait(0.2)
    assert world.calls == []  # kube-scheduler may not have got the response yet
    replica.wait()
    assert world.calls == [("patch", "prod")]
    assert replica.nodes_for("prod") == ("n1",)
    for _ in range(3):
        replica.wait()
    assert world.calls == [("patch", "prod")] * 2  # the second one removes the condition
    assert world.condition("prod") is None


def test_a_card_that_is_uncordoned_counts_as_a_release() -> None:
    world = World(make_node("n1", 1, cordoned=[0]))
    world.add("prod", (60, 4))
    replica = Replica(world, preempts=False)
    assert replica.filter("prod").unresolvable
    replica.state.put_node(make_node("n1", 1))
    replica.wait()
    assert world.calls == [("patch", "prod")]


@pytest.mark.parametrize("missed", ["nothing", "too small", "later", "elsewhere", "bound", "leads"])
def test_a_pod_that_missed_nothing_is_not_asked_about_again(missed: str) -> None:
    world = one_card(("batch", 80, {}), ("rest", 20, {}))
    world.add_second_node(100)
    replica = Replica(world, preempts=False)
    assert not replica.nodes_for("prod", ["n1"])
    if missed == "later":  # kube-scheduler has seen that itself
        replica.wait(11)
    if missed == "too small":
        replica.delete("rest")
    elif missed == "elsewhere":  # another filter keeps the pod from that node
        replica.delete("n2-batch")
    elif missed != "nothing":
        replica.delete("batch")
    if missed == "bound":
        replica.assume("prod", "n1")
    replica.leads = missed != "leads"
    for _ in range(3):
        replica.wait()
    assert world.calls == []


def test_for_one_release_few_of_many_equal_pods_are_asked_about_again() -> None:
    world = one_card(("batch", 80, {}))
    names = [f"equal-{number:02}" for number in range(30)]
    for name in names:
        world.add(name, (60, 4))
    replica = Replica(world, preempts=False)
    for name in names:
        assert not replica.nodes_for(name)
    replica.delete("batch")
    replica.wait()
    asked = [name for _, name in world.calls]
    assert len(asked) == 10
    replica.bind(asked[0], "n1")
    for _ in range(3):
        replica.wait()
    assert {name for _, name in world.calls} == {*asked}


@pytest.mark.parametrize(
    ("change", "nominated"),
    [
        ({}, 1),
        ({"type": "example.org/CardsNominated"}, 0),
        ({"status": "False"}, 0),
        ({"message": ""}, 0),
        ({"message": "[]"}, 0),
        ({"message": '{"node":"n1"}'}, 0),
        ({"message": NOMINATION.replace('"0"', '"x"')}, 0),
        ({"message": NOMINATION.replace('"0"', "0")}, 0),
        ({"message": NOMINATION.replace("2027", "soon")}, 0),
    ],
)
def test_a_condition_that_another_program_wrote_is_ignored(
    change: dict[str, str], nominated: int
) -> None:
    world = full_node()
    condition = {"type": "gpu-turnstile.io/CardsNominated", "status": "True", "message": NOMINATION}
    world.pods["prod"]["status"]["conditions"] = [condition | change]
    assert Replica(world).state.nominated == nominated


# --- ends -------------------------------------------------------------------------------


def test_cards_are_not_kept_for_ever() -> None:
    world = full_node()
    world.add("batch", (50, 4), policy="Never")
    replica = preempting(world)
    replica.end_pods()
    assert replica.nodes_for("batch") == ()
    world.pods["prod"]["status"]["nominatedNodeName"] = "n9"  # by kube-scheduler
    replica.wait(91)
    assert replica.results == ["nominated", "expired"]
    assert world.condition("prod") is None
    assert world.pods["prod"]["status"]["nominatedNodeName"] == "n9"
    assert replica.nodes_for("batch") == ("n1",)


@pytest.mark.parametrize(
    ("graces", "seconds"),
    [
        ((600, 30), 660),
        ((-(2**63), -3600), 60),
        ((0, 0), 60),
        ((30, 10**12), 3660),
        ((2**63 - 1, 0), 3660),
    ],
)
def test_cards_are_kept_until_the_slowest_victim_has_ended_but_an_hour_at_most(
    graces: tuple[int, int], seconds: int
) -> None:
    """The API server checks neither bound, and takes a negative one for 1."""
    world = full_node(cards=1, prod=(100, 0))
    for name, grace in zip(("batch-0a", "batch-0b"), graces, strict=True):
        world.pods[name]["spec"]["terminationGracePeriodSeconds"] = grace
    world.before = on("evict", raising(LOST))
    replica = preempting(world)
    assert replica.results == ["nominated"]
    replica.wait(seconds)
    assert replica.results == ["nominated"]
    replica.wait()
    assert replica.results[1] == "expired"


def test_victims_are_not_evicted_over_and_over_for_a_pod_that_does_not_use_their_room() -> None:
    """Its gang may never be complete, or its volume never provisioned."""
    world = full_node(cards=1, prod=(100, 0))
    replica = Replica(world)
    for number in range(180):
        for name in world.end_pods():
            world.add(f"{name}-{number}", (40, 8), priority=1, policy="Never", owner="batch")
        replica.watch()
        replica.bind_if_possible(*(each for each in world.pods if each != "prod"))
        replica.filter("prod")
        replica.wait(10)
    assert replica.results.count("expired") == 3
    assert len(world.evicted) == 2 * 3


def test_cards_are_not_kept_for_a_deleted_pod() -> None:
    world = full_node(prod=(100, 0))
    world.add("batch", (50, 4), policy="Never")
    replica = preempting(world)
    world.end_pods()
    replica.delete("prod")
    assert replica.nodes_for("batch") == ("n1",)
    replica.wait()
    assert replica.state.nominated == 0


def test_no_pod_is_evicted_for_a_pod_that_is_being_deleted() -> None:
    """Pods of Jobs have a finalizer, so they stay for a while."""
    world = full_node(cards=1, prod=(100, 0))
    world.add("batch", (50, 4), policy="Never")
    world.before = on("evict", raising(REFUSED), 1)
    replica = preempting(world)
    assert world.evicted == ["batch-0a"]
    world.pods["prod"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    replica.delete("batch-0a")
    assert replica.nodes_for("batch") == ("n1",)
    replica.wait()
    assert world.evicted == ["batch-0a"]


def test_a_nomination_does_not_end_while_its_pod_is_being_bound() -> None:
    world = full_node()
    replica = preempting(world)
    replica.end_pods()
    replica.assume("prod", "n1")
    replica.wait(1000)
    assert replica.results == ["nominated"]


def test_a_nomination_waits_for_an_agent_that_is_disconnected_for_a_moment() -> None:
    world = full_node()
    replica = preempting(world)
    replica.state.put_node(make_node("n1", 2, allocatable="0"))
    replica.wait()
    replica.state.put_node(world.nodes[0])
    replica.finish("prod")
    assert replica.results == ["nominated", "bound"]
    assert world.evicted == ["batch-0a"]
