"""Pods as HAMi's users write them. Numbers of its examples and trackers are facts, not copies."""

from typing import Any

import pytest

from tests.webhook.admission.building import Json, decide, review_of
from tests.webhook.admission.dialects.translating import (
    ACCEPT,
    NAMES,
    became,
    errors_of,
    original_of,
    pod_of,
    translated,
    warnings_of,
    wishes_of,
)
from webhook.admission.decision import Decision
from webhook.admission.reviews import ReviewedResource
from webhook.admission.workloads import validate_workload

GPU = "nvidia.com/gpu"
MEM, PERCENT, CORES, PRIORITY = (
    f"nvidia.com/{each}" for each in ("gpumem", "gpumem-percentage", "gpucores", "priority")
)
LIMITS = "spec.containers[0].resources.limits"
UNLIMITED = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "DISABLE"}


@pytest.mark.parametrize(
    ("limits", "ours"),
    [
        # examples/nvidia of HAMi, by file
        pytest.param({GPU: 1, MEM: 3000, CORES: 30}, {"cores": 30, "blocks": 12}, id="default_use"),
        pytest.param({GPU: 2}, {"cores": 200}, id="default_use_legacy"),
        pytest.param({GPU: 1, MEM: 3000}, {"cores": 1, "blocks": 12}, id="example"),
        pytest.param({GPU: 1}, {"cores": 100}, id="use_as_normal"),
        pytest.param({GPU: 2, PERCENT: 100, CORES: 100}, {"cores": 200}, id="use_exclusive_card"),
        pytest.param(
            {GPU: 2, PERCENT: 50, CORES: 30},
            {"cores": 60, "blocks": 96, "cards": 2},
            id="use_memory_fraction",
        ),
        pytest.param(
            {GPU: 1, PERCENT: 40, CORES: 60}, {"cores": 60, "blocks": 38}, id="use_sharing_card 1"
        ),
        pytest.param(
            {GPU: 1, PERCENT: 60, CORES: 40}, {"cores": 40, "blocks": 57}, id="use_sharing_card 2"
        ),
        pytest.param(
            {GPU: 2, PERCENT: 30, CORES: 30},
            {"cores": 60, "blocks": 56, "cards": 2},
            id="vllm_cross_vgpu",
        ),
        pytest.param(
            {GPU: 2, MEM: 18000}, {"cores": 2, "blocks": 142, "cards": 2}, id="volcano's deployment"
        ),
        # what a missing or zero count means
        ({MEM: 3000, CORES: 30}, {"cores": 30, "blocks": 12}),
        ({MEM: 3000}, {"cores": 1, "blocks": 12}),
        ({CORES: 30}, {"cores": 100}),
        ({GPU: 1, CORES: 0}, {"cores": 100}),
        ({GPU: 1, MEM: 0, PERCENT: 0}, {"cores": 100}),
        ({GPU: 1, MEM: 3000, CORES: 0}, {"cores": 1, "blocks": 12}),
        ({GPU: 1, MEM: 0, PERCENT: 50}, {"cores": 1, "blocks": 48}),
        # precedence, rounding and limits
        ({GPU: 1, MEM: 256, PERCENT: 50, CORES: 5}, {"cores": 5, "blocks": 1}),
        ({GPU: 1, MEM: 257, CORES: 5}, {"cores": 5, "blocks": 2}),
        ({GPU: 3, MEM: 1, CORES: 5}, {"cores": 15, "blocks": 3, "cards": 3}),
        ({GPU: 1, PERCENT: 1, CORES: 5}, {"cores": 5, "blocks": 1}),
        ({GPU: 1, MEM: 3000, CORES: 100}, {"cores": 100}),
        ({GPU: 2, MEM: 3000, CORES: 150}, {"cores": 200}),
        ({GPU: 1, MEM: "5k", CORES: 99}, {"cores": 99, "blocks": 20}),
        (
            {GPU: 1, MEM: 3000, CORES: 30, PRIORITY: 0, "cpu": 2},
            {"cpu": 2, "cores": 30, "blocks": 12},
        ),
    ],
)
def test_a_container_becomes_whole_cards_or_a_share_of_each_card(
    limits: Json, ours: dict[str, int]
) -> None:
    assert became(pod_of(limits)) == [ours]


@pytest.mark.parametrize(
    "limits", [{GPU: 0}, {GPU: "0", MEM: "0", CORES: 0}, {GPU: 0, MEM: 3000}, {PRIORITY: 1}]
)
def test_a_pod_that_requests_nothing_is_left_alone(limits: Json) -> None:
    assert decide(pod_of(limits), ACCEPT).patch == ()


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (
            {GPU: 1, PERCENT: 101},
            f'{LIMITS}[{PERCENT}]: Invalid value: "101": must be a percentage, at most 100',
        ),
        (
            {GPU: "1500m"},
            f'{LIMITS}[{GPU}]: Invalid value: "1500m": must be a whole number from 0 to 2147483647',
        ),
        (
            {GPU: 1, MEM: "8Gi"},
            (
                f'{LIMITS}[{MEM}]: Invalid value: "8Gi": must be a whole number from 0 to '
                "2147483647, not bytes"
            ),
        ),
        (
            {GPU: 1, MEM: -1},
            f"{LIMITS}[{MEM}]: Invalid value: -1: must be a whole number from 0 to 2147483647",
        ),
        (
            {GPU: "many"},
            f'{LIMITS}[{GPU}]: Invalid value: "many": must be a whole number from 0 to 2147483647',
        ),
    ],
)
def test_a_count_that_cannot_be_kept_is_refused(limits: Json, error: str) -> None:
    assert errors_of(pod_of(limits)) == [error]


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        # examples/nvidia of HAMi: specify_card_type_*, specify_uuid_*, specify_scheduling_policy
        ({"nvidia.com/use-gputype": "A100,V100"}, {"use-gpu-type": "A100,V100"}),
        ({"nvidia.com/nouse-gputype": "1080,2080"}, {"nouse-gpu-type": "1080,2080"}),
        (
            {"nvidia.com/use-gpuuuid": "GPU-03f69c50,GPU-5f3c1a2e"},
            {"use-gpu-uuid": "GPU-03f69c50,GPU-5f3c1a2e"},
        ),
        ({"nvidia.com/nouse-gpuuuid": "GPU-03f69c50"}, {"nouse-gpu-uuid": "GPU-03f69c50"}),
        (
            {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"},
            {"gpu-node-policy": "spread", "gpu-policy": "binpack"},
        ),
        # names of models as HAMi's annotations of nodes have them
        (
            {"nvidia.com/use-gputype": "NVIDIA-Tesla V100-PCIE-32GB, nvidia-NVIDIA A100"},
            {"use-gpu-type": "Tesla V100-PCIE-32GB,NVIDIA A100"},
        ),
        ({"nvidia.com/use-gputype": " ", "nvidia.com/nouse-gpuuuid": ""}, {}),
        ({"hami.io/gpu-scheduler-policy": "numa, spread"}, {"gpu-policy": "spread"}),
        ({"hami.io/gpu-scheduler-policy": "topology-aware"}, {}),
        ({"nvidia.com/numa-bind": "true"}, {"gpu-link": "numa"}),
        ({"nvidia.com/numa-bind": "no"}, {}),
        ({"nvidia.com/vgpu-mode": "hami-core"}, {}),
    ],
)
def test_annotations_become_wishes(annotations: dict[str, str], wishes: dict[str, str]) -> None:
    pod = pod_of({GPU: 2, MEM: 3000, CORES: 30}, **annotations)
    assert wishes_of(pod) == {"gpu-cards-c0": "2", **wishes}
    assert warnings_of(pod) == ()
    assert original_of(pod) == {
        "dialect": "hami",
        "resources": {"c0": {GPU: 2, MEM: 3000, CORES: 30}},
        "annotations": annotations,
    }


def test_numa_binding_of_a_single_card_demands_nothing() -> None:
    assert wishes_of(pod_of({GPU: 1}, **{"nvidia.com/numa-bind": "true"})) == {}


@pytest.mark.parametrize(
    ("limits", "annotations", "warning"),
    [
        ({PRIORITY: 1}, {}, f"container c0: {PRIORITY} is not kept: cards have no priorities"),
        (
            {},
            {"hami.io/gpu-scheduler-policy": "mutex"},
            "hami.io/gpu-scheduler-policy: mutex is not kept",
        ),
        (
            {},
            {"hami.io/node-scheduler-policy": "numa"},
            "hami.io/node-scheduler-policy: numa is not kept",
        ),
        (
            {},
            {"hami.io/device-scoring-weights": "slot=1"},
            "hami.io/device-scoring-weights is not kept",
        ),
    ],
)
def test_what_is_not_kept_is_warned_of(
    limits: Json, annotations: dict[str, str], warning: str
) -> None:
    share = pod_of({GPU: 1, MEM: 3000, CORES: 30} | limits, **annotations)
    assert warnings_of(share) == (warning,)


@pytest.mark.parametrize("limits", [{GPU: 1, CORES: 100}, {GPU: 1}, {GPU: 2, PERCENT: 100}])
def test_whole_cards_are_idle_when_they_are_chosen_so_mutex_is_kept(limits: Json) -> None:
    pod = pod_of(limits, **{"hami.io/gpu-scheduler-policy": "mutex"})
    assert warnings_of(pod) == ()


def test_a_card_whose_memory_is_all_taken_is_taken_whole() -> None:
    assert warnings_of(pod_of({GPU: 1, CORES: 30})) == (
        "container c0: has all memory, so whole cards instead of 30 cores of each",
    )


@pytest.mark.parametrize("mode", ["mig", "mps"])
def test_a_mode_other_than_the_library_is_refused(mode: str) -> None:
    pod = pod_of({GPU: 2, MEM: 8000}, **{"nvidia.com/vgpu-mode": mode})  # dynamic_mig_example
    (error,) = errors_of(pod)
    assert error == (
        f'metadata.annotations[nvidia.com/vgpu-mode]: Invalid value: "{mode}": must be hami-core: '
        "cards are not divided by MIG or MPS here"
    )


def test_cores_that_nobody_named_are_not_limited() -> None:
    pod = pod_of({GPU: 1, MEM: 3000}, {GPU: 1, MEM: 3000, CORES: 30})
    pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    first, second = translated(pod)["spec"]["containers"]
    assert first["env"] == [{"name": "A", "value": "b"}, UNLIMITED]
    assert "env" not in second
    assert wishes_of(pod) == {"vcuda-core-limit": "100"}
    assert warnings_of(pod) == (
        "no share of this pod is limited to its cores: vcuda-core-limit is the pod's",
    )


def test_a_policy_of_the_author_stays() -> None:
    pod = pod_of({GPU: 1, MEM: 3000})
    env = [{"name": UNLIMITED["name"], "value": "force"}]
    pod["spec"]["containers"][0]["env"] = env
    assert translated(pod)["spec"]["containers"][0]["env"] == env


# Manifests as users wrote them, from the tracker of Project-HAMi/HAMi.


def test_issue_1417_memory_in_thousands_and_its_scheduler() -> None:
    pod = pod_of({"cpu": 4, GPU: "1", MEM: "5k"})
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4", GPU: "1", MEM: "5k"}
    pod["spec"]["schedulerName"] = "hami-scheduler"
    created = translated(pod)
    ours = {NAMES.core: "1", NAMES.memory: "20"}
    (container,) = created["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"cpu": 4, **ours},
        "requests": {"cpu": "4", **ours},
    }
    assert "schedulerName" not in created["spec"]
    assert decide(pod, ACCEPT).warnings == (
        "container c0: translated from hami: vcuda-core 1, vcuda-memory 20",
        "schedulerName hami-scheduler is left out: it knows only hami's resources",
    )
    assert original_of(pod)["schedulerName"] == "hami-scheduler"


def test_issue_332_limits_and_requests_with_a_forced_limit_of_cores() -> None:
    counts = {GPU: 1, MEM: 1000, CORES: 20}
    pod = pod_of(counts)
    (container,) = pod["spec"]["containers"]
    container["resources"]["requests"] = {"cpu": 1, "memory": "1Gi", **counts}
    container["env"] = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    pod["spec"]["runtimeClassName"] = "nvidia"
    created = translated(pod)["spec"]["containers"][0]["resources"]
    ours = {NAMES.core: "20", NAMES.memory: "4"}
    assert created == {"limits": ours, "requests": {"cpu": 1, "memory": "1Gi", **ours}}
    assert warnings_of(pod) == (
        "container c0: env GPU_CORE_UTILIZATION_POLICY overrides the node's value",
    )


def test_issue_698_two_containers_with_parts_and_one_without() -> None:
    pod = pod_of({GPU: 1, PERCENT: 50}, {}, {GPU: 1, MEM: 2000})
    assert became(pod) == [{"cores": 1, "blocks": 48}, {}, {"cores": 1, "blocks": 8}]
    assert wishes_of(pod) == {"vcuda-core-limit": "100"}


def _deployment(template: Json) -> tuple[Decision, Json]:
    target = ReviewedResource("apps", "v1", "deployments", "Deployment", "")
    review = review_of(target, {"metadata": {"name": "w"}, "spec": {"template": template}})
    return validate_workload(review, names=NAMES, options=ACCEPT), template


def test_issue_722_a_deployment_with_four_whole_cards_and_a_priority() -> None:
    decision, template = _deployment(pod_of({GPU: 4, PERCENT: 100, CORES: 100, PRIORITY: 0}))
    assert (decision.errors, decision.patch) == ((), ())
    assert decision.warnings == (
        "container c0: translated from hami: vcuda-core 400",
        f"container c0: {PRIORITY} is not kept: cards have no priorities",
    )
    assert became(template) == [{"cores": 400}]


def test_issue_1069_a_deployment_with_cards_by_uuid() -> None:
    uuids = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d,GPU-03f69c50-207a-2038-9b45-23cac89cb67e"
    decision, template = _deployment(pod_of({GPU: 2}, **{"nvidia.com/use-gpuuuid": uuids}))
    assert decision.warnings == ("container c0: translated from hami: vcuda-core 200",)
    assert (became(template), wishes_of(template)) == ([{"cores": 200}], {"use-gpu-uuid": uuids})


def test_issue_886_a_container_without_limits_gets_them() -> None:
    pod = pod_of({GPU: 1, MEM: 3000, CORES: 30})
    variable: Any = {"name": "CUDA_DISABLE_CONTROL", "value": "true"}
    pod["spec"]["containers"][0]["env"] = [variable]
    assert warnings_of(pod) == (
        "container c0: CUDA_DISABLE_CONTROL is not kept: shares have limits",
    )


def test_requests_in_annotations_are_not_read_as_in_hami() -> None:
    pod = pod_of({GPU: "1"}, **{MEM: "4096", CORES: "30"})  # its issue 2862
    assert became(pod) == [{"cores": 100}]
    assert warnings_of(pod) == (
        f"annotation {MEM} is not read, as in HAMi: write limits",
        f"annotation {CORES} is not read, as in HAMi: write limits",
    )
    assert original_of(pod)["annotations"] == {MEM: "4096", CORES: "30"}
