"""Pods as HAMi's users write them. Numbers of its examples and trackers are facts, not copies."""

from typing import Any

import pytest

from tests.webhook.admission.building import Json, decide
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

GPU = "nvidia.com/gpu"
MEM, PERCENT, CORES, PRIORITY = (
    f"nvidia.com/{each}" for each in ("gpumem", "gpumem-percentage", "gpucores", "priority")
)
LIMITS = "spec.containers[0].resources.limits"
POLICY = "hami.io/gpu-scheduler-policy"
UNLIMITED = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "DISABLE"}


@pytest.mark.parametrize(
    ("limits", "ours"),
    [
        # examples/nvidia of HAMi, by file
        ({GPU: 1, MEM: 3000, CORES: 30}, {"cores": 30, "blocks": 12}),  # default_use
        ({GPU: 2}, {"cores": 200}),  # default_use_legacy
        ({GPU: 1}, {"cores": 100}),  # use_as_normal
        ({GPU: 2, PERCENT: 100, CORES: 100}, {"cores": 200}),  # use_exclusive_card
        (
            {GPU: 2, PERCENT: 50, CORES: 30},
            {"cores": 60, "blocks": 96, "cards": 2},
        ),  # use_memory_fraction
        ({GPU: 1, PERCENT: 40, CORES: 60}, {"cores": 60, "blocks": 38}),  # use_sharing_card 1
        ({GPU: 2, MEM: 18000}, {"cores": 2, "blocks": 142, "cards": 2}),  # volcano's deployment
        # what a missing or zero count means
        ({MEM: 3000, CORES: 30}, {"cores": 30, "blocks": 12}),
        ({MEM: 3000}, {"cores": 1, "blocks": 12}),
        ({CORES: 30}, {"cores": 100}),
        ({GPU: 1, CORES: 0}, {"cores": 100}),
        ({GPU: 1, MEM: 3000, CORES: 0}, {"cores": 1, "blocks": 12}),
        ({GPU: 1, MEM: 0, PERCENT: 50}, {"cores": 1, "blocks": 48}),
        # precedence, rounding and limits
        ({GPU: 1, MEM: 256, PERCENT: 50, CORES: 5}, {"cores": 5, "blocks": 1}),
        ({GPU: 1, MEM: 257, CORES: 5}, {"cores": 5, "blocks": 2}),
        ({GPU: 3, MEM: 1, CORES: 5}, {"cores": 15, "blocks": 3, "cards": 3}),
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
        ({}, {f"{POLICY}": "mutex"}, f"{POLICY}: mutex is not kept"),
        (
            {},
            {"hami.io/device-scoring-weights": "slot=1"},
            "hami.io/device-scoring-weights is not kept",
        ),
    ],
)
def test_a_setting_that_is_not_kept_is_warned_of(
    limits: Json, annotations: dict[str, str], warning: str
) -> None:
    share = pod_of({GPU: 1, MEM: 3000, CORES: 30} | limits, **annotations)
    assert warnings_of(share) == (warning,)


@pytest.mark.parametrize("limits", [{GPU: 1, CORES: 100}, {GPU: 1}, {GPU: 2, PERCENT: 100}])
def test_whole_cards_are_idle_when_they_are_chosen_so_mutex_is_kept(limits: Json) -> None:
    pod = pod_of(limits, **{"hami.io/gpu-scheduler-policy": "mutex"})
    assert warnings_of(pod) == ()


def test_a_card_whose_memory_is_all_requested_is_requested_whole() -> None:
    assert warnings_of(pod_of({GPU: 1, CORES: 30})) == (
        "container c0: has all memory, so whole cards instead of 30 cores of each",
    )


def test_a_mode_other_than_the_library_is_refused() -> None:
    pod = pod_of({GPU: 2, MEM: 8000}, **{"nvidia.com/vgpu-mode": "mig"})  # dynamic_mig_example
    (error,) = errors_of(pod)
    assert error == (
        'metadata.annotations[nvidia.com/vgpu-mode]: Invalid value: "mig": must be hami-core: '
        "cards are not divided by MIG or MPS here"
    )


def test_cores_that_no_limit_names_are_not_limited() -> None:
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
