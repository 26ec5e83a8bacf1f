"""Workloads that Kueue has reserved quota for: all of their pods find cards, or none gets any."""

from random import Random

import pytest

from common.errors import Unavailable
from gates.checker import Checker
from gates.program import oldest_wait
from tests.gates.kueue import Kueue, labelled
from tests.placement.cluster.builders import NAMES, hint, make_node


def kept(kueue: Kueue) -> int:
    return kueue.gate.promised


def test_of_six_shares_of_60_on_four_cards_four_are_admitted_and_two_give_their_quota_back() -> (
    None
):
    kueue = Kueue(make_node("n1", 4))
    for number in range(6):
        kueue.reserve(f"w{number}", (60, 4))
    kueue.answer()
    assert kueue.states() == ["Ready"] * 4 + ["Retry"] * 2
    assert kueue.check("w5") == {
        "name": "cards",
        "state": "Retry",
        "message": "no room on cards: cards for 0 of 1 pod: 1 node: no card has 60 cores and "
        "4 blocks free",
        "requeueAfterSeconds": None,
        "podSetUpdates": None,
        "lastTransitionTime": "2027-01-15T08:00:02Z",
    }
    assert [kueue.run_workload(f"w{number}") for number in range(4)] == [[]] * 4
    assert kueue.results == ["ready"] * 4 + ["retry"] * 2


@pytest.mark.parametrize(
    ("limits", "count", "nodes", "state"),
    [
        ((60, 4), 6, (4,), "Retry"),
        ((60, 4), 4, (4,), "Ready"),
        ((100, 0), 8, (4, 4), "Ready"),
        ((100, 0), 9, (4, 4), "Retry"),
        ((200, 0), 4, (4, 4), "Ready"),
        ((30, 4), 24, (4, 4), "Ready"),
        ((30, 4), 25, (4, 4), "Retry"),
    ],
)
def test_a_gang_is_admitted_whole_or_not_at_all(
    limits: tuple[int, int], count: int, nodes: tuple[int, ...], state: str
) -> None:
    kueue = Kueue(*(make_node(f"n{at}", cards) for at, cards in enumerate(nodes)))
    kueue.reserve("gang", limits, count=count)
    kueue.answer()
    assert kueue.states() == [state]
    assert kept(kueue) == (state == "Ready")
    if state == "Ready":
        assert kueue.run_workload("gang") == []


def test_a_workload_that_is_admitted_in_part_needs_cards_for_fewer_pods() -> None:
    kueue = Kueue(make_node("n1", 4))
    kueue.reserve("part", (60, 4), count=6, admitted=4)
    kueue.answer()
    assert kueue.states() == ["Ready"]
    assert kueue.run_workload("part") == []


def test_pods_get_only_nodes_of_their_flavor_that_may_get_pods() -> None:
    kueue = Kueue(labelled("n1", 1, "a100"), labelled("n2", 1, "l4"), make_node("n3", 2))
    for name, model in (("big", "a100"), ("small", "l4")):
        spec = {"nodeLabels": {"tencent.com/gpu-model": model}}
        kueue.gate.put_flavor({"metadata": {"name": name}, "spec": spec})
    kueue.reserve("first", (60, 4), flavors=("small",))
    kueue.reserve("second", (60, 4), flavors=("small",))
    kueue.answer()
    assert kueue.states() == ["Ready", "Retry"]
    assert '"n2":["0"]' in kueue.check("first")["message"]
    text = "nodeSelector tencent.com/gpu-model=l4"
    assert f"2 nodes: {text}; 1 node: no card" in kueue.check("second")["message"]
    kueue.objects[0]["spec"] = {"unschedulable": True}
    kueue.objects[2]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    kueue.reserve("third", (60, 4))
    kueue.answer()
    assert "the node is cordoned" in kueue.check("third")["message"]
    assert "the node is not ready" in kueue.check("third")["message"]


def test_pods_that_are_ending_are_waited_for_and_their_cards_are_kept() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.create("old", (60, 4), node="n1", annotations=hint("0"))
    kueue.api.pods["old"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z"
    for name, priority in (("second", 0), ("first", 10)):
        kueue.reserve(name, (60, 4), priority=priority)
    kueue.answer()
    assert kueue.check("first")["state"] == "Pending"
    assert "cardsKeptUntil" in kueue.check("first")["message"]
    assert kueue.check("second")["state"] == "Retry"
    assert oldest_wait(kueue.gate) == 0.0
    kueue.create("other", (60, 4))
    assert kueue.ask("other") == []
    del kueue.api.pods["old"]
    kueue.state.drop_pod("u-old")
    kueue.watch()
    kueue.answer()
    assert kueue.check("first")["state"] == "Ready"
    assert kueue.ask("other") == []  # they are kept still
    assert kueue.run_workload("first") == []


@pytest.mark.parametrize("end", ["finished", "evicted", "deactivated", "without quota", "gone"])
def test_cards_of_a_workload_that_ends_are_free(end: str) -> None:
    kueue = Kueue(make_node("n1", 1))
    obj = kueue.reserve("first", (60, 4))
    kueue.answer()
    assert kept(kueue) == 1
    conditions = obj["status"]["conditions"]
    if end == "gone":
        del kueue.kueue.workloads["first"]
        for state in (kueue.gate, kueue.state):
            state.drop_workload("w-first")
    elif end == "deactivated":
        obj["spec"]["active"] = False
    elif end == "without quota":
        conditions[0]["status"] = "False"
    else:
        kind = "Finished" if end == "finished" else "Evicted"
        conditions.append({"type": kind, "status": "True"})
    kueue.reserve("second", (60, 4))
    kueue.answer()
    assert kueue.check("second")["state"] == "Ready"
    assert kueue.run_workload("second") == []


def test_cards_are_kept_only_for_some_time() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.reserve("first", (60, 4))
    kueue.answer()
    kueue.create("other", (60, 4))
    assert kueue.ask("other") == []
    kueue.now += kueue.checker.keep
    kueue.state.end_expired_promises()
    assert kueue.ask("other") == ["n1"]


def test_a_workload_without_cards_waits_without_quota_until_there_are_some() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.checker.retry = 60
    kueue.reserve("first", (60, 4))
    kueue.answer()
    assert kueue.run_workload("first") == []
    for name in ("second", "third"):
        kueue.reserve(name, (60, 4))
    kueue.refuse("second", "third")
    assert not kueue.has_quota("second")
    assert kueue.check("second")["message"].startswith("no room on cards: cards for 0 of 1 pod")
    kueue.react()
    assert not kueue.has_quota("second")
    kueue.end("first")
    kueue.answer()
    assert [kueue.check(each)["state"] for each in ("second", "third")] == ["Pending", "Retry"]
    (again,) = (
        each
        for each in kueue.kueue.workloads["second"]["status"]["conditions"]
        if each["type"] == "Requeued"
    )
    assert again["message"] == kueue.check("second")["message"] == "cards are free"
    kueue.reserve("newer", (60, 4), priority=10)
    kueue.react()
    kueue.answer()
    assert kueue.states() == ["Ready", "Ready", "Retry", "Retry"]
    assert kueue.run_workload("second") == []


def test_cards_that_are_offered_to_a_workload_without_quota_are_free_again_soon() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.checker.retry = 60
    kueue.reserve("first", (60, 4))
    kueue.answer()
    for name in ("second", "third"):
        kueue.reserve(name, (60, 4))
    kueue.refuse("second", "third")
    kueue.end("first")
    kueue.step()
    kueue.watch()
    assert kueue.states() == ["Ready", "Pending", "Retry"]
    kueue.now += 9
    kueue.step()
    assert kueue.states() == ["Ready", "Pending", "Retry"]
    kueue.now += 2  # it has got no quota
    kueue.step()
    assert kueue.states() == ["Ready", "Pending", "Pending"]


def test_a_workload_that_has_quota_again_at_once_is_refused_again() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.reserve("gang", (60, 4), count=2)
    kueue.answer()
    for _ in range(3):
        kueue.react()
    assert kueue.has_quota("gang")
    kueue.refuse("gang")
    assert not kueue.has_quota("gang")


def test_a_workload_without_cards_is_tried_again_after_a_longer_time_each() -> None:
    """Kueue may evict others for it, or assign another flavor."""
    kueue = Kueue(make_node("n1", 1))
    kueue.reserve("gang", (60, 4), count=2)
    seconds: list[int] = []
    for _ in range(7):
        kueue.refuse("gang")
        began = kueue.now
        if len(seconds) == 3:
            kueue.start()  # the next controller reads the time in the workload
        while kueue.check("gang")["state"] == "Retry":
            kueue.now += 1
            kueue.step()
            kueue.watch()
        seconds.append(round(kueue.now - began))
        kueue.react()
        assert kueue.has_quota("gang")
    assert seconds == [5, 10, 20, 40, 80, 120, 120]


def test_a_workload_for_which_others_were_evicted_in_vain_evicts_no_more() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.reserve("victim", (40, 4))
    kueue.answer()
    assert kueue.run_workload("victim") == []
    message = "Previously: Preempted to accommodate a workload (UID: w-whole, JobUID: j) due to ..."
    victim = kueue.kueue.workloads["victim"]
    victim["status"]["conditions"].append({"type": "Preempted", "message": message})
    kueue.reserve("whole", (100, 0))
    kueue.refuse("whole")
    kueue.now += 1000
    kueue.step()
    assert kueue.check("whole")["state"] == "Retry"
    kueue.end("victim")
    kueue.step()
    assert kueue.check("whole")["message"] == "cards are free"


def test_workloads_without_gpus_and_with_nodes_of_their_own_are_not_held_up() -> None:
    kueue = Kueue(make_node("n1", 1))
    plain = kueue.reserve("plain", (60, 4))
    plain["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] = {}
    placed = kueue.reserve("placed", (60, 4), count=9)
    placed["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = {"levels": []}
    kueue.watch()
    kueue.answer()
    assert kueue.states() == ["Ready", "Ready"]
    assert kept(kueue) == 0


def test_pods_that_an_elastic_job_has_already_need_no_more_cards() -> None:
    kueue = Kueue(make_node("n1", 4))
    kueue.reserve("job", (60, 4), count=3)
    kueue.answer()
    assert kueue.run_workload("job") == []
    slice_ = kueue.reserve("job-2", (60, 4), count=4)
    slice_["metadata"]["annotations"] = {"kueue.x-k8s.io/workload-slice-name": "job"}
    slice_["status"]["admission"]["podSetAssignments"][0]["count"] = 4
    kueue.watch()
    kueue.answer()
    assert kueue.check("job-2")["state"] == "Ready"
    (update,) = kueue.check("job-2")["podSetUpdates"]
    assert update["annotations"] == {NAMES.gpu_promise: "job/main"}  # as the pods have it already
    assert kueue.check("job-2")["message"].count('"3"') == 1


def test_a_check_is_activated_and_one_with_parameters_is_not() -> None:
    kueue = Kueue()
    other = {"metadata": {"name": "other"}, "spec": {"controllerName": "example.com/other"}}
    wrong = {
        "metadata": {"name": "wrong"},
        "spec": {"controllerName": "gpu-turnstile.io/cards", "parameters": {"name": "p"}},
    }
    kueue.kueue.checks |= {"other": other, "wrong": wrong}
    kueue.watch()
    kueue.answer()
    (active,) = kueue.kueue.checks["cards"]["status"]["conditions"]
    (refused,) = kueue.kueue.checks["wrong"]["status"]["conditions"]
    assert (active["type"], active["status"]) == ("Active", "True")
    assert (refused["status"], refused["reason"]) == ("False", "BadParametersRef")
    assert refused["message"] == "parameters: Forbidden: this check has none"
    assert "status" not in other


# --- errors and kills --------------------------------------------------------------------------


def test_a_write_that_may_have_failed_keeps_the_cards_until_it_is_known() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.kueue.failing = [Unavailable("API server: no response in time")]
    kueue.reserve("first", (60, 4))
    kueue.step()
    assert kueue.results == ["unavailable"]
    kueue.answer()
    assert kueue.states() == ["Ready"]


def test_another_replica_answers_nothing() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.leads = False
    kueue.reserve("first", (60, 4))
    kueue.answer()
    assert kueue.states() == ["Pending"]
    assert oldest_wait(kueue.gate) == 5.0


def test_a_workload_that_changes_meanwhile_is_answered_once_more() -> None:
    kueue = Kueue(make_node("n1", 1))
    obj = kueue.reserve("first", (60, 4))
    obj["metadata"]["resourceVersion"] = "2"
    kueue.step()
    assert kueue.results == ["conflict"]
    kueue.watch()
    kueue.answer()
    assert kueue.states() == ["Ready"]


@pytest.mark.parametrize("seed", range(20))
def test_no_admitted_pod_is_without_a_card_whatever_ends_or_is_killed(seed: int) -> None:
    """Ten workloads in each of 20 clusters, and a controller killed before every third answer."""
    random = Random(seed)
    sizes = [(20, 2), (30, 4), (50, 8), (60, 10), (100, 0), (200, 0)]
    kueue = Kueue(*(make_node(f"n{at}", random.choice([1, 2, 4])) for at in range(3)))
    running: list[str] = []
    for number in range(10):
        name = f"w{number}"
        kueue.reserve(name, random.choice(sizes), count=random.randint(1, 4))
        if not number % 3:
            kueue.start()
        kueue.answer()
        if kueue.check(name)["state"] == "Ready":
            if random.random() < 0.5:
                kueue.start()
            assert kueue.run_workload(name) == []
            running.append(name)
        else:
            del kueue.kueue.workloads[name]
            for state in (kueue.gate, kueue.state):
                state.drop_workload(f"w-{name}")
        if running and random.random() < 0.4:
            kueue.end(running.pop(0))
        kueue.now += random.choice([0, 10, 400])
        kueue.state.end_expired_promises()
    assert running or kueue.results.count("ready")


def test_a_controller_that_reads_its_own_promises_goes_on_with_them() -> None:
    kueue = Kueue(make_node("n1", 1))
    kueue.reserve("first", (60, 4))
    kueue.answer()
    kueue.start()
    kueue.reserve("second", (60, 4))
    kueue.answer()
    assert kueue.states() == ["Ready", "Retry"]
    assert isinstance(kueue.checker, Checker)
