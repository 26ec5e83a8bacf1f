"""HAMi's, Volcano's and NVIDIA's pods. Numbers of their examples and trackers are facts."""

from typing import Any

import pytest

from contract.other_systems import MIG_PREFIX, Dialect
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
from webhook.admission.dialects.counts import count_containers
from webhook.admission.options import AdmissionOptions

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.20gb"
MEM, PERCENT, CORES, PRIORITY = (
    f"nvidia.com/{each}" for each in ("gpumem", "gpumem-percentage", "gpucores", "priority")
)
NUMBER, VOLCANO_MEM, VOLCANO_PERCENT, VOLCANO_CORES = (
    f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "memory-percentage", "cores")
)
OLD_MEM, OLD_NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
LIMITS = "spec.containers[0].resources.limits"
POLICY = "hami.io/gpu-scheduler-policy"
UNLIMITED = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "DISABLE"}


@pytest.mark.parametrize(
    ("limits", "ours"),
    [
        # examples/nvidia of HAMi: default_use, default_use_legacy, use_as_normal,
        # use_exclusive_card, use_memory_fraction, use_sharing_card 1
        ({GPU: 1, MEM: 3000, CORES: 30}, {"cores": 30, "blocks": 12}),
        ({GPU: 2}, {"cores": 200}),
        ({GPU: 2, PERCENT: 100, CORES: 100}, {"cores": 200}),
        ({GPU: 2, PERCENT: 50, CORES: 30}, {"cores": 60, "blocks": 96, "cards": 2}),
        ({GPU: 1, PERCENT: 40, CORES: 60}, {"cores": 60, "blocks": 38}),
        # what a missing or zero count means
        ({MEM: 3000, CORES: 30}, {"cores": 30, "blocks": 12}),
        ({CORES: 30}, {"cores": 100}),
        ({GPU: 1, CORES: 0}, {"cores": 100}),
        ({GPU: 1, MEM: 3000, CORES: 0}, {"cores": 1, "blocks": 12}),
        ({GPU: 1, MEM: 0, PERCENT: 50}, {"cores": 1, "blocks": 48}),
        # precedence, rounding and limits
        ({GPU: 1, MEM: 256, PERCENT: 50, CORES: 5}, {"cores": 5, "blocks": 1}),
        ({GPU: 3, MEM: 257, CORES: 5}, {"cores": 15, "blocks": 6, "cards": 3}),
        ({GPU: 2, MEM: 3000, CORES: 150}, {"cores": 200}),
        ({GPU: 1, MEM: "5k", CORES: 99, "cpu": 2}, {"cpu": 2, "cores": 99, "blocks": 20}),
        # examples of volcano-vgpu-device-plugin: case01, deployment; its README
        ({NUMBER: 1, VOLCANO_MEM: 1024}, {"cores": 1, "blocks": 4}),
        (
            {NUMBER: 2, VOLCANO_MEM: 3000, VOLCANO_CORES: 50},
            {"cores": 100, "blocks": 24, "cards": 2},
        ),
        # docs/user-guide/how_to_use_volcano_vgpu.md of volcano
        ({NUMBER: 4, VOLCANO_MEM: 16384}, {"cores": 4, "blocks": 256, "cards": 4}),
        # example/gpu-share.yml and README of volcano-sh/devices
        ({OLD_MEM: 1024}, {"cores": 1, "blocks": 4}),
        ({OLD_NUMBER: 2, OLD_MEM: 1024}, {"cores": 200}),
        # what a missing or zero count means
        ({VOLCANO_MEM: 3000}, {"cores": 1, "blocks": 12}),
        ({NUMBER: 2, VOLCANO_CORES: 50}, {"cores": 200}),
        ({NUMBER: 1, VOLCANO_MEM: 0}, {"cores": 100}),
        ({NUMBER: 1, VOLCANO_MEM: 3000, VOLCANO_CORES: 100}, {"cores": 100}),
        ({NUMBER: 1, VOLCANO_MEM: 3000, VOLCANO_PERCENT: 50}, {"cores": 1, "blocks": 48}),
        ({NUMBER: 1, VOLCANO_PERCENT: 100}, {"cores": 100}),
    ],
)
def test_a_container_becomes_whole_cards_or_a_share_of_each_card(
    limits: Json, ours: dict[str, int]
) -> None:
    assert became(pod_of(limits)) == [ours]


@pytest.mark.parametrize(
    "limits",
    [
        *({GPU: "0", MEM: "0", CORES: 0}, {GPU: 0, MEM: 3000}, {PRIORITY: 1}),
        *({NUMBER: 0, VOLCANO_MEM: 3000}, {VOLCANO_MEM: 0}, {OLD_MEM: "0"}),
    ],
)
def test_a_pod_that_requests_nothing_is_left_alone(limits: Json) -> None:
    assert decide(pod_of(limits), ACCEPT).patch == ()


WHOLE_NUMBER = "must be a whole number from 0 to 2147483647"


@pytest.mark.parametrize(
    ("limits", "name", "error"),
    [
        ({GPU: 1, PERCENT: 101}, PERCENT, '"101": must be a percentage, at most 100'),
        ({GPU: "1500m"}, GPU, f'"1500m": {WHOLE_NUMBER}'),
        ({GPU: 1, MEM: "8Gi"}, MEM, f'"8Gi": {WHOLE_NUMBER}, not bytes'),
        ({VOLCANO_CORES: 50}, VOLCANO_CORES, f'"50": without {NUMBER} it requests no card'),
        ({VOLCANO_PERCENT: 50}, VOLCANO_PERCENT, f'"50": without {NUMBER} it requests no card'),
        (
            {NUMBER: 1, VOLCANO_CORES: 101},
            VOLCANO_CORES,
            '"101": must be at most 100, a whole card',
        ),
        *(
            (
                {NUMBER: 1, VOLCANO_PERCENT: each},
                VOLCANO_PERCENT,
                f'"{each}": must be a percentage, 1 to 100',
            )
            for each in (0, 101)
        ),
        (
            {NUMBER: 1, OLD_MEM: 1024},
            NUMBER,
            '"1": beside Volcano\'s older gpu-memory or gpu-number: write only one of both',
        ),
    ],
)
def test_a_count_that_cannot_be_kept_is_refused(limits: Json, name: str, error: str) -> None:
    assert errors_of(pod_of(limits)) == [f"{LIMITS}[{name}]: Invalid value: {error}"]


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        # examples/nvidia of HAMi: specify_card_type_*, specify_uuid_*, specify_scheduling_policy
        ({"nvidia.com/use-gputype": "A100,V100"}, {"use-gpu-type": "A100,V100"}),
        ({"nvidia.com/nouse-gputype": "1080,2080"}, {"nouse-gpu-type": "1080,2080"}),
        ({"nvidia.com/use-gpuuuid": "GPU-03f,GPU-5f3"}, {"use-gpu-uuid": "GPU-03f,GPU-5f3"}),
        ({"nvidia.com/nouse-gpuuuid": "GPU-03f69c50"}, {"nouse-gpu-uuid": "GPU-03f69c50"}),
        (
            {"hami.io/node-scheduler-policy": "spread", POLICY: "binpack"},
            {"gpu-node-policy": "spread", "gpu-policy": "binpack"},
        ),
        # names of models as HAMi's annotations of nodes have them
        (
            {"nvidia.com/use-gputype": "NVIDIA-Tesla V100-PCIE-32GB, nvidia-NVIDIA A100"},
            {"use-gpu-type": "Tesla V100-PCIE-32GB,NVIDIA A100"},
        ),
        ({"nvidia.com/use-gputype": " ", "nvidia.com/nouse-gpuuuid": ""}, {}),
        ({POLICY: "numa, spread"}, {"gpu-policy": "spread"}),
        ({POLICY: "topology-aware"}, {}),
        ({"nvidia.com/numa-bind": "true"}, {"gpu-link": "numa"}),
        ({"nvidia.com/numa-bind": "no"}, {}),
        ({"nvidia.com/vgpu-mode": "hami-core"}, {}),
    ],
)
def test_hamis_annotations_become_wishes(
    annotations: dict[str, str], wishes: dict[str, str]
) -> None:
    pod = pod_of({GPU: 2, MEM: 3000, CORES: 30}, **annotations)
    assert wishes_of(pod) == {"gpu-cards-c0": "2", **wishes}
    assert warnings_of(pod) == ()
    assert original_of(pod) == {
        "dialect": "hami",
        "resources": {"c0": {GPU: 2, MEM: 3000, CORES: 30}},
        "annotations": annotations,
    }
    single = wishes_of(pod_of({GPU: 1}, **annotations))
    assert single == {key: each for key, each in wishes.items() if key != "gpu-link"}


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        ({"volcano.sh/vgpu-use-gpuuuid": "GPU-03f69c50"}, {"use-gpu-uuid": "GPU-03f69c50"}),
        ({"volcano.sh/vgpu-nouse-gpuuuid": "GPU-03f69c50"}, {"nouse-gpu-uuid": "GPU-03f69c50"}),
        # A list of types to use precedes the list of others
        (
            {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "V100"},
            {"use-gpu-type": "A100"},
        ),
        ({"nvidia.com/nouse-gputype": "V100"}, {"nouse-gpu-type": "V100"}),
        ({"volcano.sh/vgpu-mode": "hami-core"}, {}),
    ],
)
def test_volcanos_annotations_become_wishes(
    annotations: dict[str, str], wishes: dict[str, str]
) -> None:
    pod = pod_of({NUMBER: 1, VOLCANO_MEM: 3000, VOLCANO_CORES: 50}, **annotations)
    assert (wishes_of(pod), warnings_of(pod)) == (wishes, ())


SHARE = {GPU: 1, MEM: 3000, CORES: 30}
GANG, WEIGHTS = "volcano.sh/vgpu-podgroup-policy", "hami.io/device-scoring-weights"
ALL_MEMORY = "container c0: has all memory, so whole cards instead of 30 cores of each"


@pytest.mark.parametrize(
    ("limits", "annotations", "warnings"),
    [
        (
            SHARE | {PRIORITY: 1},
            {},
            [f"container c0: {PRIORITY} is not kept: cards have no priorities"],
        ),
        (SHARE, {POLICY: "mutex"}, [f"{POLICY}: mutex is not kept"]),
        # Whole cards are idle when they are chosen.
        *(
            (limits, {POLICY: "mutex"}, [])
            for limits in ({GPU: 1, CORES: 100}, {GPU: 1}, {GPU: 2, PERCENT: 100})
        ),
        (SHARE, {WEIGHTS: "slot=1"}, [f"{WEIGHTS} is not kept"]),
        ({GPU: 1, CORES: 30}, {}, [ALL_MEMORY]),
        ({NUMBER: 1}, {GANG: "spread"}, [f"{GANG} is not kept"]),
    ],
)
def test_a_setting_that_is_not_kept_is_warned_of(
    limits: Json, annotations: dict[str, str], warnings: list[str]
) -> None:
    assert list(warnings_of(pod_of(limits, **annotations))) == warnings


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({GPU: 2, MEM: 8000}, "nvidia.com/vgpu-mode"),  # dynamic_mig_example
        ({NUMBER: 1, VOLCANO_MEM: 3000}, "volcano.sh/vgpu-mode"),
    ],
)
def test_a_mode_other_than_the_library_is_refused(limits: Json, name: str) -> None:
    (error,) = errors_of(pod_of(limits, **{name: "mig"}))
    assert error == (
        f'metadata.annotations[{name}]: Invalid value: "mig": must be hami-core: '
        "cards are not divided by MIG or MPS here"
    )


def test_cores_that_no_limit_names_are_not_limited_and_a_policy_of_the_author_stays() -> None:
    pod = pod_of({GPU: 1, MEM: 3000}, {GPU: 1, MEM: 3000, CORES: 30}, {GPU: 1, MEM: 3000})
    author = {"name": UNLIMITED["name"], "value": "force"}
    pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    pod["spec"]["containers"][2]["env"] = [author]
    first, second, third = translated(pod)["spec"]["containers"]
    assert first["env"] == [{"name": "A", "value": "b"}, UNLIMITED]
    assert "env" not in second
    assert third["env"] == [author]
    assert wishes_of(pod) == {"vcuda-core-limit": "100"}
    assert warnings_of(pod) == (
        "no share of this pod is limited to its cores: vcuda-core-limit is the pod's",
        f"container c2: env {UNLIMITED['name']} overrides the node's value",
    )


def test_volcano_schedules_gangs_of_any_pods_so_it_stays() -> None:
    pod = pod_of({NUMBER: 1})
    pod["spec"]["schedulerName"] = "volcano"
    assert translated(pod)["spec"]["schedulerName"] == "volcano"
    assert warnings_of(pod) == ()


# --- manifests as users wrote them, from the tracker of Project-HAMi/HAMi ----------------


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
    pod = pod_of(SHARE)
    variable: Any = {"name": "CUDA_DISABLE_CONTROL", "value": "true"}
    pod["spec"]["containers"][0]["env"] = [variable]
    assert warnings_of(pod) == (
        "container c0: CUDA_DISABLE_CONTROL is not kept: shares have limits",
    )


def test_issue_2862_requests_in_annotations_are_not_read_as_in_hami() -> None:
    pod = pod_of({GPU: "1"}, **{MEM: "4096", CORES: "30"})
    assert became(pod) == [{"cores": 100}]
    assert warnings_of(pod) == (
        f"annotation {MEM} is not read, as in HAMi: write limits",
        f"annotation {CORES} is not read, as in HAMi: write limits",
    )
    assert original_of(pod)["annotations"] == {MEM: "4096", CORES: "30"}


# --- NVIDIA's -------------------------------------------------------------------------------

NVIDIA = AdmissionOptions(accept=frozenset({Dialect.NVIDIA}))
SLICES = (
    "a card shared by time-slicing or MPS, whose part is unknown: write vcuda-core and "
    "vcuda-memory for a share, or nvidia.com/gpu for a whole card"
)
INSTANCE = (
    "an instance of a card in MIG mode: write vcuda-core 100 and use-gpu-type with its profile "
    "(agent's --mig shares), or vcuda-core and vcuda-memory for a share"
)


@pytest.mark.parametrize(
    ("options", "dialect"), [(NVIDIA, "nvidia"), (ACCEPT, "hami")], ids=["alone", "beside HAMi"]
)
def test_gpus_are_whole_cards_and_parts_of_cards_are_refused(
    options: AdmissionOptions, dialect: str
) -> None:
    assert became(pod_of({GPU: 2}), options) == [{"cores": 200}]
    (warning,) = decide(pod_of({GPU: "1"}), options).warnings
    assert warning == f"container c0: translated from {dialect}: vcuda-core 100"
    of_one = "nvidia.com/mig-1g.5gb.shared"
    for limits, name, detail in (
        ({SHARED: "1"}, SHARED, SLICES),
        ({MIG: "1"}, MIG, INSTANCE),  # examples/nvidia/mig_example of HAMi
        ({GPU: "1", of_one: 1}, of_one, INSTANCE),
    ):
        error = f'{LIMITS}[{name}]: Invalid value: "1": {detail}'
        assert errors_of(pod_of(limits), options) == [error]


def test_a_count_that_cannot_be_read_is_one_error_of_both_systems() -> None:
    assert errors_of(pod_of({GPU: "x"})) == errors_of(pod_of({GPU: "x"}), NVIDIA)


def test_parts_of_cards_are_left_to_nvidias_plugin_if_only_hami_is_accepted() -> None:
    hami = AdmissionOptions(accept=frozenset({Dialect.HAMI}))
    assert decide(pod_of({MIG: "1", SHARED: 1}), hami).label == "allowed"


def test_the_instances_of_other_containers_are_not_counted() -> None:
    """A hostile pod may have thousands of containers, each with a name of its own."""
    pod = pod_of(*({f"nvidia.com/mig-{each}": "1"} for each in range(3)))
    counted = count_containers(pod, [GPU], path="", prefix=MIG_PREFIX)
    assert [each.counts for each in counted] == [
        {GPU: 0, f"nvidia.com/mig-{each}": 1} for each in range(3)
    ]
