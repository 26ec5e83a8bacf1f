"""KAI's annotations."""

from fractions import Fraction
from typing import Any

import pytest

from tests.webhook.admission.dialects.reading_pods import (
    errors_of,
    read,
    requests_of,
)
from tests.webhook.admission.dialects.translating import pod_of
from webhook.admission.dialects.kai import read_kai
from webhook.admission.dialects.reading import CardRequest

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
CARDS, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"


def kai_pod(*containers: dict[str, Any], **annotations: str) -> dict[str, Any]:
    given = {key.replace("_", "-"): value for key, value in annotations.items()}
    return pod_of(*containers or ({},), **given)


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        # docs/gpu-sharing/gpu-sharing.yaml, and mps/gpu-sharing-with-mps.yaml
        ({"gpu_fraction": "0.5"}, CardRequest(1, percent=50)),
        # docs/gpu-sharing/gpu-memory.yaml
        ({"gpu_memory": "2000"}, CardRequest(1, memory=2000)),
        # its issue 1521: 4 cards x 50%, 8 cards x 50 GB
        (
            {"gpu_fraction": "0.5", "gpu_fraction_num_devices": "4"},
            CardRequest(4, percent=50),
        ),
        (
            {"gpu_memory": "51200", "gpu_fraction_num_devices": "8"},
            CardRequest(8, memory=51200),
        ),
        ({"gpu_fraction": ".25"}, CardRequest(1, percent=25)),
        ({"gpu_fraction": "0.333"}, CardRequest(1, percent=Fraction("33.3"))),
        ({"gpu_fraction": "5e-1"}, CardRequest(1, percent=50)),
    ],
)
def test_the_first_main_container_requests(
    annotations: dict[str, str], request_: CardRequest
) -> None:
    pod = kai_pod({}, {}, **annotations)
    pod["spec"]["initContainers"] = [{"name": "init"}]
    reading = read(read_kai, pod)
    assert [(each.field, each.index) for each in reading.containers] == [("containers", 0)]
    assert requests_of(reading) == [request_]
    assert not reading.errors
    assert not reading.warnings
    assert list(reading.annotations) == list(pod["metadata"]["annotations"])


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("c1", ("containers", 1)),  # docs/gpu-sharing/gpu-sharing-non-default-container.yaml
        ("gpu-init", ("initContainers", 0)),  # docs/gpu-sharing/gpu-sharing-init-container.yaml
    ],
)
def test_a_named_container_requests(name: str, where: tuple[str, int]) -> None:
    pod = kai_pod({}, {}, {}, gpu_fraction="0.5", gpu_fraction_container_name=name)
    pod["spec"]["initContainers"] = [{"name": "gpu-init"}]
    reading = read(read_kai, pod)
    assert [(each.field, each.index) for each in reading.containers] == [where]
    assert requests_of(reading) == [CardRequest(1, percent=50)]


@pytest.mark.parametrize(
    "annotations",
    [{}, {"gpu_fraction_num_devices": "2"}, {"gpu_fraction_container_name": "c0"}, {"mps": "true"}],
)
def test_a_pod_without_a_part_of_a_card_is_none(annotations: dict[str, str]) -> None:
    # examples/quickstart/pods: gpu-pod.yaml has nvidia.com/gpu, cpu-only-pod.yaml has nothing
    assert read_kai(kai_pod({"nvidia.com/gpu": "1"}, **annotations), path="") is None


def test_its_scheduler_and_mps_are_warned_of() -> None:
    pod = kai_pod(gpu_fraction="0.5", mps="true")
    pod["spec"]["schedulerName"] = "kai-scheduler"
    reading = read(read_kai, pod)
    assert reading.warnings == (
        "mps is not kept: MPS is set up on nodes",
        "spec.schedulerName: kai-scheduler stays, its queues do not count these cards",
    )
    assert set(reading.annotations) == {"gpu-fraction", "mps"}
    assert not reading.schedulers


def test_settings_of_kai_0_18_are_warned_of_up_to_eight_times() -> None:
    limit = "kai.scheduler/container.c0.gpu-memory.portion.limit"
    pod = kai_pod(gpu_fraction="0.5")
    pod["metadata"]["annotations"][limit] = "0.8"
    reading = read(read_kai, pod)
    assert reading.warnings == (f"{limit} is not kept",)
    assert set(reading.annotations) == {"gpu-fraction", limit}
    pod["metadata"]["annotations"] |= {f"kai.scheduler/container.{n}": "" for n in range(99)}
    assert len(read(read_kai, pod).warnings) == 8


NO_FRACTION = "must be more than 0 and less than 1, a part of a card's memory such as 0.5"
NO_COUNT = "must be a whole number from 1 to 2147483647"


@pytest.mark.parametrize(
    ("annotations", "error"),
    [
        *(
            ({FRACTION: each}, f'[{FRACTION}]: Invalid value: "{each}": {NO_FRACTION}')
            for each in ("1", "1.0", "0", "-1", "1.5", "NaN", "half", "")
        ),
        *(
            ({MEMORY: each}, f'[{MEMORY}]: Invalid value: "{each}": {NO_COUNT}')
            for each in ("0", "-5", "+5", "2Gi", "1e3", "2000.5", "", "9" * 30)
        ),
        *(
            (
                {FRACTION: "0.5", CARDS: each},
                f'[{CARDS}]: Invalid value: "{each}": {NO_COUNT}',
            )
            for each in ("0", "1.2", "")
        ),
        (
            {FRACTION: "0.5", MEMORY: "2000"},
            f'[{MEMORY}]: Invalid value: "2000": gpu-fraction is there, too: write one of them',
        ),
        (
            {FRACTION: "0.5", CONTAINER: "c9"},
            f'[{CONTAINER}]: Invalid value: "c9": names no container of the pod',
        ),
        (
            {FRACTION: "0.5", "runai/shared-gpu-configmap": "x-shared-gpu"},
            (
                '[runai/shared-gpu-configmap]: Invalid value: "x-shared-gpu": left by KAI\'s '
                "webhook: the container would wait for a ConfigMap that KAI makes"
            ),
        ),
    ],
)
def test_a_request_that_cannot_be_kept_is_refused(annotations: dict[str, str], error: str) -> None:
    reading = read(read_kai, pod_of({}, **annotations))
    assert errors_of(reading) == f"metadata.annotations{error}"
    assert not any(requests_of(reading))


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_whole_cards_beside_a_part_are_refused(field: str) -> None:
    pod = kai_pod(gpu_memory="2000")
    container = {"name": "w", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod["spec"].setdefault(field, []).append(container)
    index = len(pod["spec"][field]) - 1
    assert errors_of(read(read_kai, pod)) == (
        f'spec.{field}[{index}].resources.limits[nvidia.com/gpu]: Invalid value: "1": the pod has '
        "gpu-fraction or gpu-memory, too: KAI refuses both together"
    )


def test_a_pod_without_containers_is_refused() -> None:
    pod = {"metadata": {"annotations": {FRACTION: "0.5"}}, "spec": {}}
    assert errors_of(read(read_kai, pod)) == (
        'metadata.annotations[gpu-fraction]: Invalid value: "0.5": the pod has no container'
    )
