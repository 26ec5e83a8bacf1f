"""Pods of one owner that are refused repeatedly are counted, and the cause is named."""

import pytest

from tests.placement.cluster.builders import Json, hint, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import explanation_of, state_of
from view.model.pod_groups import group_pods
from view.model.reports import Stage


def test_repeatedly_refused_pods_are_counted_and_the_cause_is_named() -> None:
    storm = scenes.storm()
    state = state_of([make_node("n1", 1)], storm)
    starting = make_pod("web-5d-next", (50, 4), node="n1")  # the controller's next try
    starting["metadata"] |= {
        **storm[-1]["metadata"],
        "name": "web-5d-next",
        "uid": "u-next",
        "creationTimestamp": "2025-11-22T09:00:01Z",
    }
    state.put_pod(starting)
    (group,) = group_pods([each for each in state.report().pods if each.stage is Stage.REFUSED])
    assert group.headline == (
        "Deployment default/web: refused 137 times in 20 s: default-scheduler does not see cards; "
        "gpu-turnstile: no card fits 50 cores: GPU-n1-0: 11 of 50 cores free"
    )
    assert not any(each.replaced for each in state.report().pods)
    assert (
        "Deployment/web was refused 137 times in 20 s: default-scheduler does not see cards"
        in explanation_of(state, "web-5d-3").summary
    )
    # One that runs ends it, also one of the next revision.
    running = scenes.running("web-6e-0", (50, 4), "n1", 0)
    owner = {"kind": "ReplicaSet", "name": "web-6e", "uid": "u-6e", "controller": True}
    running["metadata"] |= {
        "labels": {"pod-template-hash": "6e"},
        "ownerReferences": [owner],
        "creationTimestamp": "2025-11-22T09:00:02Z",
    }
    state.put_pod(running)
    left = [each.name for each in state.report().pods if not each.replaced]
    assert left == ["web-5d-next", "web-6e-0"]
    state.drop_pod("u-web-6e-0")
    assert not any(each.replaced for each in state.report().pods)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, "default-scheduler does not see cards; "),
        ({"annotations": {**scenes.stamps("n1"), **hint("0")}}, ""),  # cards were chosen
        ({"message": "Pod was rejected: OutOfcpu"}, ""),  # not for want of a card
    ],
)
def test_a_scheduler_is_named_only_if_it_is_the_cause(change: Json, named: str) -> None:
    storm = scenes.storm(2)
    for pod in storm:
        pod["metadata"]["annotations"] = change.get("annotations", pod["metadata"]["annotations"])
        pod["status"]["message"] = change.get("message", pod["status"]["message"])
    (group,) = group_pods(state_of([make_node("n1", 1)], storm).report().pods)
    assert group.name == "Deployment default/web: refused 2 times in 20 s"
    assert group.why.startswith(named)
    assert ("does not see cards" in group.why) is bool(named)


def test_pods_refused_at_the_same_time_are_not_refused_repeatedly() -> None:
    (group,) = group_pods(state_of([], scenes.storm(4, seconds=0)).report().pods)
    assert group.name == "Deployment default/web: 4 pods"
