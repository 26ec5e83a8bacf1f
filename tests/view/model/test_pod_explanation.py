"""Explanations of pods: summary, progress, cards and limits."""

import json
from typing import Any

import pytest

from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod, record
from tests.view import scenes
from tests.view.model.test_state import explanation_of, scene, state_of
from view.model.pod_explanation import UNLIMITED, PodExplanation
from view.model.usage import MetricSample, read_usage, with_limits


def explain(name: str) -> PodExplanation:
    return explanation_of(scene(), name)


def alone(pod: Json, node: Json | None = None) -> PodExplanation:
    """The explanation of a pod in a cluster of one node, of two cards if none is given."""
    return explanation_of(state_of([node or make_node("n1", 2)], [pod]), pod["metadata"]["name"])


REFUSED = (
    "was refused on n1: no card fits 90 cores and 4 memory blocks: GPU-n1-0: 40 of 90 cores free. "
    "default-scheduler does not see cards. "
    "Smallest change: request 40 cores instead of 90 (fits on n1, n2)"
)


@pytest.mark.parametrize(
    ("name", "summary", "steps"),
    [
        ("train", "runs on n1", ["done"] * 5),
        ("hinted", "is bound to n2 and is not running yet", [*["done"] * 3, *["missing"] * 2]),
        ("late", REFUSED, [*["done"] * 3, *["wrong"] * 2]),
    ],
)
def test_the_progress_of_a_pod_ends_at_its_current_step(
    name: str, summary: str, steps: list[str]
) -> None:
    found = explain(name)
    assert (found.summary, [each.state for each in found.steps]) == (summary, steps)


def test_a_step_has_its_time_author_and_evidence() -> None:
    _, admitted, bound, allocated, started = explain("train").steps
    assert admitted.at == "2025-11-22T08:26:40Z"
    assert bound.text == "to n1 by default-scheduler"
    held, _, evidence = allocated.text.partition(", evidence ")
    assert held == "c0: 60 cores and 16 blocks of card 0, reported by the agent"
    assert evidence == "witness: no other container matched the call"
    assert (started.at, started.text) == ("2025-11-22T08:00:00Z", "running")
    assert "which chose c0: card 0" in explain("hinted").steps[2].text


def _ended(phase: str, **status: Any) -> Json:
    pod = scenes.running("a", (200, 8), "n1", 0)
    ended = {"startedAt": "2025-11-22T08:00:00Z", "finishedAt": "2025-11-22T09:00:00Z"}
    statuses = [{"name": "c0", "state": {"terminated": ended}}]
    return {**pod, "status": {"phase": phase, "containerStatuses": statuses, **status}}


HALVES = {NAMES.gpu_cards_of("c0"): "2"}
HELD = record(c0=(("GPU-n1-0",), 100, 0))
LIMIT_40, LIMIT_80 = ({NAMES.core_limit: each} for each in ("40", "80"))
WHOLE = "c0: 2 whole cards and 8 blocks (2 GiB)"
UNBOUNDED = "c0: 1 whole card, no memory limit"
SHARE = "c0: 30 cores and 4 blocks (1 GiB) of one card, up to 80 while others do not use theirs"
SPLIT = (
    "c0: 30 cores and 4 blocks (1 GiB) of each of 2 cards, up to 40 while others do not use theirs"
)
FAILED = _ended("Failed", reason="Error", message="no")
STARTS = "is bound to n1 and is not running yet"


def _bound(*limit: int, phase: str = "Pending", **annotations: str) -> Json:
    cores, blocks = limit
    return make_pod("a", (cores, blocks), node="n1", phase=phase, annotations=annotations)


@pytest.mark.parametrize(
    ("pod", "summary", "last", "limit"),
    [
        (_ended("Succeeded"), "succeeded on n1", "succeeded", WHOLE),
        (FAILED, "failed on n1: Error: no", "Error: no", WHOLE),
        (_bound(100, 0, phase="Running", **HELD), "runs on n1", "not yet", UNBOUNDED),
        (_bound(30, 4, **LIMIT_80), STARTS, "not yet", f"{SHARE} (vcuda-core-limit)"),
        (_bound(60, 8, **HALVES, **LIMIT_40), STARTS, "not yet", f"{SPLIT} (vcuda-core-limit)"),
    ],
)
def test_an_explanation_ends_with_the_pods_end_and_lists_its_limits(
    pod: Json, summary: str, last: str, limit: str
) -> None:
    found = alone(pod)
    assert (found.summary, found.steps[-1].text, found.limits[0]) == (summary, last, limit)


def test_what_mps_limits_is_said_instead_of_what_an_admin_may_have_enabled() -> None:
    explanation = alone(_bound(30, 4, phase="Running", **{NAMES.gpu_processes: "2"}))
    labels = {
        "namespace": explanation.pod.namespace,
        "pod": explanation.pod.name,
        "container": "c0",
        "card": "GPU-n1-0",
    }
    gauges = {
        "cores_held": 30,
        "core_limit": 15,
        "memory_limit_bytes": 2**29,
        "mps_clients": 2,
    }
    prefix = "gpu_turnstile_agent_container_"
    samples = [MetricSample(f"{prefix}{name}", labels, value) for name, value in gauges.items()]
    ended = MetricSample(f"{prefix}core_limit", labels | {"pod": "ended"}, 15)
    (use,) = read_usage("n1", [*samples, ended]).containers
    found = with_limits(explanation, [use]).limits
    assert found[1] == "With MPS, each of 2 processes has an equal part (gpu-processes)."
    assert found[-1] == (
        "c0: MPS limits each process to 15 % of the SMs and 0.5 GiB; "
        "processes connected to its daemon: 2"
    )
    assert UNLIMITED not in found
    assert UNLIMITED in with_limits(explanation, []).limits
    more = gauges | {"memory_limit_bytes": 2**28}
    on_other = labels | {"card": "GPU-n1-1"}
    samples += [MetricSample(f"{prefix}{name}", on_other, value) for name, value in more.items()]
    (use,) = read_usage("n1", samples).containers
    assert use.limit.startswith(
        "MPS limits each process to 15 % of the SMs and 0.25 to 0.5 GiB of each of 2 cards; "
    )


TWO = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
"""As the API server writes 3000."""

HAMI = {
    "dialect": "hami",
    "resources": {"c0": TWO, "side": {"nvidia.com/gpu": "1"}},
    "annotations": {"nvidia.com/use-gputype": "A100,T4"},
    "schedulerName": "hami-scheduler",
}
HAMI_TEXT = (
    "hami: c0: nvidia.com/gpu 1, nvidia.com/gpumem 3000; side: nvidia.com/gpu 1; "
    "nvidia.com/use-gputype=A100,T4; schedulerName=hami-scheduler"
)


AMOUNTS = [
    ("hami", "nvidia.com/gpumem"),
    ("volcano", "volcano.sh/vgpu-memory"),
    ("vgpu-manager", "nvidia.com/vgpu-memory"),
    ("gpushare", "aliyun.com/gpu-mem"),
    ("elastic-gpu", "elasticgpu.io/gpu-memory"),
]


@pytest.mark.parametrize(
    ("kept", "written"),
    [
        (HAMI, HAMI_TEXT),
        ({"dialect": "kai", "annotations": {"gpu-memory": "9"}}, "kai: gpu-memory=9"),
        ({"dialect": 1, "resources": [], "annotations": {"a": {}}}, "1: a={}"),
        *(
            ({"dialect": dialect, "resources": {"c": {name: "12k"}}}, f"{dialect}: c: {name} 12000")
            for dialect, name in AMOUNTS
        ),
        ({"resources": {"c0": 7}}, ""),
        ("{", ""),
    ],
)
def test_the_original_request_of_a_translated_pod_is_shown(kept: Any, written: str) -> None:
    text = kept if isinstance(kept, str) else json.dumps(kept)
    pod = make_pod("a", (30, 4), annotations={NAMES.translated_from: text})
    found = alone(pod)
    assert found.pod.translated_from == written


_EPOCH = "1970-01-01T00:00:00Z"
_TIMES = {"startedAt": "2025-11-22T08:00:00Z", "finishedAt": "2025-11-22T09:00:00Z"}


def _terminated(name: str, reason: str, code: int = 128, **times: Any) -> Json:
    ended = {"reason": reason, "exitCode": code, **_TIMES, **times}
    return {"name": name, "state": {"terminated": ended}}


_BEGAN = _TIMES["startedAt"]
_NEVER = ("", "c0 did not start", "wrong")
_SETUP = {"name": "c0", "state": {"waiting": {"reason": "PodInitializing"}}}
_EVICTED = {
    "name": "c0",
    "restartCount": 3,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"reason": "Error", "exitCode": 1, **_TIMES}},
}
_GONE = _terminated("c0", "ContainerStatusUnknown", 137, startedAt=None, finishedAt=None)


@pytest.mark.parametrize(
    ("status", "started"),
    [
        ([_terminated("c0", "StartError", startedAt=_EPOCH)], _NEVER),
        ([_terminated("c0", "ContainerCannotRun", 127, startedAt="0001-01-01T00:00:00Z")], _NEVER),
        ([_terminated("c0", "OOMKilled", 137)], (_BEGAN, "started", "done")),
        (  # one of two
            [_terminated("c0", "Error", 1), _terminated("c1", "StartError", startedAt=_EPOCH)],
            (_BEGAN, "c1 did not start", "wrong"),
        ),
        # an init container ends the pod
        ([_terminated("setup", "Error", 1), _SETUP], (_BEGAN, "c0 did not start", "wrong")),
        ([_EVICTED], ("", "started", "done")),  # while it waited for its next start
        # the kubelet found no container after its node's end
        ([_GONE], ("", "unknown: the kubelet has lost the container", "wrong")),
        ([], ("", "never", "wrong")),
    ],
)
def test_a_container_that_never_started_is_not_shown_as_started(
    status: list[Json], started: tuple[str, str, str]
) -> None:
    pod = scenes.running("a", (30, 4), "n1", 0)
    pod["status"] = {"phase": "Failed", "containerStatuses": status}
    found = alone(pod, make_node("n1", 1))
    step = next(each for each in found.steps if each.name == "started")
    assert (step.at, step.text, step.state) == started
    assert "1970" not in str(found)
    assert "0001" not in str(found)


def test_a_pod_that_did_not_pass_the_webhook_is_marked() -> None:
    found = alone(make_pod("a", (30, 4), node="n1"))
    assert [each.state for each in found.steps[1:3]] == ["wrong", "wrong"]
    assert found.steps[1].text == "without a stamp: the webhook was not called"


def test_a_node_named_by_the_manifest_is_not_a_schedulers_choice() -> None:
    pod = scenes.refused("a", (50, 4), "n1", "no card fits 50 cores")
    del pod["metadata"]["annotations"][NAMES.bind_order]
    found = alone(pod, make_node("n1", 1))
    text = "to n1, without a stamp: its manifest names the node (spec.nodeName), or the webhook"
    assert found.steps[2].text == f"{text} was not called for its binding"
    assert "scheduler" not in found.summary


@pytest.mark.parametrize(("by", "state"), [("cards", "done"), ("default-scheduler", "wrong")])
def test_a_pod_without_a_stamp_was_bound_by_its_scheduler_if_its_event_says_so(
    by: str, state: str
) -> None:
    pod = make_pod("a", (30, 4), node="n1")
    pod["spec"]["schedulerName"] = "cards"
    cluster = state_of([make_node("n1", 1)], [pod])
    cluster.put_event(scenes.event(pod, "Scheduled", "Successfully assigned a to n1", by))
    step = explanation_of(cluster, "a").steps[2]
    assert (step.name, step.state) == ("bound", state)
    assert step.text.startswith("to n1 by cards, without a stamp: ") is (state == "done")


def test_a_fault_of_a_pods_card_or_node_is_in_its_first_line() -> None:
    pod = scenes.running("a", (30, 4), "n1", 0)
    found = alone(pod, make_node("n1", 1, unhealthy=[0]))
    assert found.summary == "runs on n1; container c0 holds card 0, which is unhealthy (Xid 79)"
    assert found.steps[-1].text == "running"
    found = alone(pod, make_node("n1", 1, allocatable="0"))
    assert found.node_problem == "the agent is not connected to the kubelet: nothing is allocatable"
    assert found.summary == f"runs on n1, which is unavailable: {found.node_problem}"
    ended = pod | {"status": {"phase": "Succeeded"}}
    broken = make_node("n1", 1, unhealthy=[0], allocatable="0")
    assert alone(ended, broken).summary == "succeeded on n1"


TAINTED = "0/1 nodes are available: 1 node(s) had untolerated taint {team: a}. no new claims"


def test_what_the_pods_own_spec_excludes_comes_with_the_schedulers_words() -> None:
    node = make_node("n1", 1)
    node["spec"] = {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}
    found = alone(scenes.waiting("a", (30, 4), message=TAINTED), node)
    own = "excluded by its own spec: no toleration of the taint team=a:NoSchedule (1 node)"
    quoted = f'is pending: it fits on the cards of n1; {own}; default-scheduler: "{TAINTED}"'
    assert found.summary == quoted
    reason, _, note = found.steps[-1].text.partition(" (")
    assert reason == f'default-scheduler: Unschedulable: "{TAINTED}"'
    assert note == "a node may be counted under several reasons)"
    assert (found.changes, found.no_change) == ((), "")


def test_a_schedulers_event_is_quoted_without_a_condition() -> None:
    pod = scenes.waiting("a", (30, 4))
    state = state_of([make_node("n1", 1)], [pod])
    state.put_event(scenes.event(pod, "FailedScheduling", TAINTED, "volcano"))
    found = explanation_of(state, "a")
    assert found.summary.endswith(f'default-scheduler: "{TAINTED}"')
    assert f'FailedScheduling: "{TAINTED}"' in found.steps[-1].text


def test_a_container_whose_start_was_vetoed_shows_the_reason() -> None:
    pod = scenes.running("a", (30, 4), "n1", 0)
    pod["status"] = {"phase": "Pending"}
    state = state_of([make_node("n1", 1)], [pod])
    texts = {"09:00:00": "holds GPU-n1-1", "08:00:00": "first by the alphabet"}
    for at, text in texts.items():
        veto = scenes.event(pod, "GPUStartVetoed", text, "gpu-turnstile", at=at)
        veto["metadata"]["name"] = at
        state.put_event(veto)
    found = explanation_of(state, "a")
    assert found.summary == "is bound to n1 and is not running yet: holds GPU-n1-1"
    assert [each.message for each in found.pod.events] == [*texts.values()]


def test_a_pod_bound_where_it_does_not_fit_shows_that_before_it_is_refused() -> None:
    pods = [scenes.running("a", (60, 4), "n1", 0), make_pod("b", (60, 4), node="n1")]
    found = explanation_of(state_of([make_node("n1", 1)], pods), "b")
    why = "it does not fit there now: no card has 60 cores and 4 blocks free"
    assert found.summary == f"is bound to n1 and is not running yet; {why}"


def test_a_refused_pod_shows_where_a_new_one_would_fit() -> None:
    pod = scenes.refused("a", (30, 4), "n1", "full")
    found = alone(pod, make_node("n1", 1))
    assert found.summary == "was refused on n1: full. A new pod would now fit on n1"
    assert found.changes == ()


def test_a_share_of_several_cards_shows_what_it_has_of_each() -> None:
    cards = record(c0=(("GPU-n1-0", "GPU-n1-1"), 100, 8))
    pod = make_pod("a", (100, 8), node="n1", phase="Running", annotations={**HALVES, **cards})
    found = alone(pod)
    assert found.steps[3].text.startswith("c0: 50 cores and 4 blocks of each of cards 0, 1, ")
    (container,) = found.pod.containers
    assert (container.cores, container.blocks, container.split) == (100, 8, 2)
    assert [(part.cores, part.blocks) for part in container.parts] == [(50, 4), (50, 4)]
    assert [(card.cores_free, card.blocks_free) for card in found.cards] == [(50, 28), (50, 28)]
