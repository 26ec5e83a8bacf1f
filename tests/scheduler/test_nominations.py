"""What is read of pods and budgets for preemption, and the condition that nominates a pod."""

from typing import Any

import pytest

from placement.cluster.nominations import Nomination, read_nomination
from scheduler.budgets import matches, read_budgets
from scheduler.nominations import Nominations, read_standing
from tests.placement.cluster.builders import Json, a_pod, make_pod


def _pod(metadata: Json | None = None, **spec: Any) -> Json:
    pod = make_pod("a", (30, 4))
    pod["metadata"] |= metadata or {}
    pod["spec"] |= spec
    return pod


POD_ID = a_pod("a", (30, 4)).id
OWNERS = [{"uid": "u-1"}, {"uid": "u-2", "controller": True}]


@pytest.mark.parametrize(
    ("pod", "group"),
    [
        (_pod(), ""),
        (_pod({"ownerReferences": OWNERS}), "u-2"),
        (_pod({"ownerReferences": OWNERS[:1]}), ""),
        (_pod({"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}), "default/g"),
        (_pod({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}), "default/g"),
        (_pod({"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}}), "default/g"),
        (_pod({"annotations": {"scheduling.k8s.io/group-name": "g"}}), "default/g"),
        (
            _pod({"ownerReferences": OWNERS}, schedulingGroup={"podGroupName": "g"}),
            "default/g",
        ),
    ],
)
def test_a_gang_counts_before_the_owner(pod: Json, group: str) -> None:
    assert read_standing(pod).group == group


def test_requests_are_those_that_kube_scheduler_counts() -> None:
    def container(cpu: str, **more: str) -> Json:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    inits = [container("3"), container("500m", restartPolicy="Always"), {"name": "plain"}]
    pod = _pod(containers=[container("1"), container("1")], initContainers=inits)
    assert read_standing(pod).requests == {"cpu": 3}
    pod["spec"]["initContainers"] = inits[1:]
    assert read_standing(pod).requests == {"cpu": 2.5}


def test_missing_fields_have_the_defaults_of_kubernetes() -> None:
    standing = read_standing(_pod())
    assert (standing.priority, standing.may_preempt, standing.grace) == (0, True, 30)
    assert standing.may_be_evicted
    assert read_standing(_pod(terminationGracePeriodSeconds=0)).grace == 0
    deleted = read_standing(_pod({"deletionTimestamp": "2027-01-15T08:00:00Z"}))
    assert not deleted.may_be_evicted
    assert [deleted.leaves_soon(1_800_000_000.0 + each) for each in (-61, -60, 30, 31)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("all_leave", [False, True])
def test_the_condition_is_read_as_it_was_written(all_leave: bool) -> None:
    nomination = Nomination("n1", {"main": (0, 12)}, ("u-1", "u-2"), 1_800_000_000, all_leave)
    pod = _pod()
    pod["status"]["conditions"] = [{"type": "Ready"}, nomination.as_condition(1_799_999_999.0)]
    assert read_nomination(pod) == nomination


def test_an_older_event_of_the_watch_does_not_end_a_nomination_that_was_just_written() -> None:
    nomination = Nomination("n1", {"c0": (0,)}, ("u-1",), 1_800_000_000)
    nominations, older, newer = Nominations(), _pod(), _pod()
    newer["status"]["conditions"] = [nomination.as_condition(0.0)]
    pod_id = POD_ID
    nominations.add("u-a", nomination)
    nominations.put_pod(older, pod_id, bound=False)
    assert nominations.find("u-a") == nomination
    nominations.put_pod(newer, pod_id, bound=False)
    nominations.put_pod(older, pod_id, bound=False)  # it was removed
    assert nominations.find("u-a") is None
    assert nominations.nodes == set()
    nominations.put_pod(newer, pod_id, bound=False)
    nominations.add("u-a", nomination)  # the watch was faster than the response
    nominations.put_pod(older, pod_id, bound=False)
    assert nominations.find("u-a") is None


def test_a_withdrawn_nomination_does_not_come_back_by_an_older_event() -> None:
    nomination = Nomination("n1", {"c0": (0,)}, ("u-1",), 1_800_000_000)
    nominations, shown, pod_id = Nominations(), _pod(), POD_ID
    shown["status"]["conditions"] = [nomination.as_condition(0.0)]
    nominations.put_pod(shown, pod_id, bound=False)
    nominations.withdraw("u-a")
    nominations.put_pod(shown, pod_id, bound=False)
    assert nominations.find("u-a") is None
    following = Nomination("n2", {"c0": (0,)}, ("u-2",), 1_800_000_060)
    nominations.add("u-a", following)
    nominations.put_pod(shown, pod_id, bound=False)
    assert nominations.find("u-a") == following


def test_a_pod_is_bound_with_the_condition_until_it_is_removed() -> None:
    nominations, shown, removed = Nominations(), _pod(), _pod()
    shown["status"]["conditions"] = [Nomination("n1", {}, (), 0).as_condition(0.0)]
    nominations.put_pod(shown, POD_ID, bound=True)
    assert nominations.take_bound() == {"u-a": POD_ID}
    assert nominations.take_bound() == {}
    nominations.put_pod(shown, POD_ID, bound=True)
    nominations.put_pod(removed, POD_ID, bound=True)  # by the replica that leads
    assert nominations.take_bound() == {}
    nominations.put_pod(shown, POD_ID, bound=True)
    nominations.drop_pod("u-a")
    assert nominations.take_bound() == {}
    assert nominations.standing("u-a") is None


# --- budgets ---------------------------------------------------------------------------

LABELS = {"app": "x", "tier": "web"}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "x", "tier": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["y"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}, True),
        ({"matchExpressions": [{"key": "no", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "no", "operator": "In", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "no", "operator": "Newer"}]}, True),
    ],
)
def test_a_selector_selects_as_in_kubernetes(selector: Json, selected: bool) -> None:
    assert matches(selector, LABELS) == selected


def _budget(generation: int, spec: Json | None = None, **status: int) -> Json:
    metadata = {"name": "b", "namespace": "team", "generation": generation}
    return {"metadata": metadata, "spec": {"selector": {}} if spec is None else spec} | (
        {"status": status} if status else {}
    )


def test_a_budget_that_is_not_up_to_date_allows_nothing() -> None:
    budgets = read_budgets(
        [
            _budget(1, disruptionsAllowed=2, observedGeneration=1),
            _budget(2, disruptionsAllowed=2, observedGeneration=1),
            _budget(1),
        ]
    )
    assert [each.allowed for each in budgets] == [2, 0, 0]


def test_a_budget_covers_pods_of_its_namespace_and_without_a_selector_none() -> None:
    everything, nothing = read_budgets([_budget(1), _budget(1, {})])
    assert everything.key == "team/b"
    assert everything.covers("team", LABELS)
    assert not everything.covers("other", LABELS)
    assert not nothing.covers("team", LABELS)
