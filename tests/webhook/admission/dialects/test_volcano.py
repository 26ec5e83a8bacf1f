import pytest

from tests.webhook.admission.building import Json, decide
from tests.webhook.admission.dialects.translating import (
    ACCEPT,
    became,
    errors_of,
    pod_of,
    translated,
    warnings_of,
    wishes_of,
)

NUMBER, MEM, PERCENT, CORES = (
    f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "memory-percentage", "cores")
)
OLD_MEM, OLD_NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
LIMITS = "spec.containers[0].resources.limits"


@pytest.mark.parametrize(
    ("limits", "ours"),
    [
        # examples of volcano-vgpu-device-plugin: case01, case02, deployment, README
        ({NUMBER: 1, MEM: 1024}, {"cores": 1, "blocks": 4}),
        ({NUMBER: 1, MEM: 16384}, {"cores": 1, "blocks": 64}),
        ({NUMBER: 2, MEM: 3000, CORES: 50}, {"cores": 100, "blocks": 24, "cards": 2}),
        # docs/user-guide/how_to_use_volcano_vgpu.md of volcano
        ({NUMBER: 1, CORES: 50, MEM: 3000}, {"cores": 50, "blocks": 12}),
        ({NUMBER: 4, MEM: 16384}, {"cores": 4, "blocks": 256, "cards": 4}),
        # example/gpu-share.yml and README of volcano-sh/devices
        ({OLD_MEM: 1024}, {"cores": 1, "blocks": 4}),
        ({OLD_NUMBER: 1}, {"cores": 100}),
        # what a missing or zero count means
        ({MEM: 3000}, {"cores": 1, "blocks": 12}),
        ({NUMBER: 1}, {"cores": 100}),
        ({NUMBER: 2, CORES: 50}, {"cores": 200}),
        ({NUMBER: 1, MEM: 0}, {"cores": 100}),
        ({NUMBER: 1, MEM: 3000, CORES: 100}, {"cores": 100}),
        ({NUMBER: 1, MEM: 3000, PERCENT: 50}, {"cores": 1, "blocks": 48}),
        ({NUMBER: 1, PERCENT: 100}, {"cores": 100}),
        ({OLD_NUMBER: 2, OLD_MEM: 1024}, {"cores": 200}),
    ],
)
def test_a_container_becomes_whole_cards_or_a_share_of_each_card(
    limits: Json, ours: dict[str, int]
) -> None:
    assert became(pod_of(limits)) == [ours]


@pytest.mark.parametrize("limits", [{NUMBER: 0, MEM: 3000}, {MEM: 0}, {OLD_MEM: "0"}])
def test_a_pod_that_requests_nothing_is_left_alone(limits: Json) -> None:
    assert decide(pod_of(limits), ACCEPT).patch == ()


@pytest.mark.parametrize(
    ("limits", "name", "error"),
    [
        ({CORES: 50}, CORES, f'"50": without {NUMBER} it requests no card'),
        ({PERCENT: 50}, PERCENT, f'"50": without {NUMBER} it requests no card'),
        ({NUMBER: 1, CORES: 101}, CORES, '"101": must be at most 100, a whole card'),
        ({NUMBER: 1, PERCENT: 0}, PERCENT, '"0": must be a percentage, 1 to 100'),
        ({NUMBER: 1, PERCENT: 101}, PERCENT, '"101": must be a percentage, 1 to 100'),
        (
            {NUMBER: 1, OLD_MEM: 1024},
            NUMBER,
            '"1": beside Volcano\'s older gpu-memory or gpu-number: write only one of both',
        ),
    ],
)
def test_a_count_that_no_card_has_is_refused(limits: Json, name: str, error: str) -> None:
    assert errors_of(pod_of(limits)) == [f"{LIMITS}[{name}]: Invalid value: {error}"]


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
def test_annotations_become_wishes(annotations: dict[str, str], wishes: dict[str, str]) -> None:
    pod = pod_of({NUMBER: 1, MEM: 3000, CORES: 50}, **annotations)
    assert (wishes_of(pod), warnings_of(pod)) == (wishes, ())


def test_a_setting_that_is_not_kept_is_warned_of_or_refused() -> None:
    gang = pod_of({NUMBER: 1}, **{"volcano.sh/vgpu-podgroup-policy": "spread"})
    assert warnings_of(gang) == ("volcano.sh/vgpu-podgroup-policy is not kept",)
    (error,) = errors_of(pod_of({NUMBER: 1, MEM: 3000}, **{"volcano.sh/vgpu-mode": "mig"}))
    assert error.startswith("metadata.annotations[volcano.sh/vgpu-mode]: Invalid value: ")


def test_volcano_schedules_gangs_of_any_pods_so_it_stays() -> None:
    pod = pod_of({NUMBER: 1})
    pod["spec"]["schedulerName"] = "volcano"
    assert translated(pod)["spec"]["schedulerName"] == "volcano"
    assert warnings_of(pod) == ()
