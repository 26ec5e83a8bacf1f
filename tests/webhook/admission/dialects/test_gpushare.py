"""gpushare's names."""

from typing import Any

import pytest

from tests.webhook.admission.dialects.reading_pods import (
    errors_of,
    read,
    requests_of,
)
from tests.webhook.admission.dialects.translating import pod_of
from webhook.admission.dialects.gpushare import read_gpushare
from webhook.admission.dialects.reading import CardRequest

MEMORY, COUNT, CORES = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "aliyun.com/gpu-core.percentage",
)
LIMITS = "spec.containers[0].resources.limits"


def labelled(limits: dict[str, Any], cards: str, **annotations: str) -> dict[str, Any]:
    pod = pod_of(limits, **annotations)
    pod["metadata"]["labels"] = {COUNT: cards}
    return pod


@pytest.mark.parametrize(
    ("limits", "unit", "request_"),
    [
        # samples/1.yaml to 3.yaml of the extender, demo/binpack-1 of the plugin: 2 GiB
        ({MEMORY: 2}, 1024, CardRequest(1, memory=2048)),
        # docs/userguide.md of the extender: 3 GiB
        ({MEMORY: 3}, 1024, CardRequest(1, memory=3072)),
        # docs/designs/designs.md and samples/4.yaml, with --memory-unit=MiB
        ({MEMORY: "8138"}, 1, CardRequest(1, memory=8138)),
        ({MEMORY: 16276}, 1, CardRequest(1, memory=16276)),
        ({MEMORY: 4, COUNT: 1}, 1024, CardRequest(1, memory=4096)),
        ({MEMORY: 4, COUNT: 0}, 1024, CardRequest(1, memory=4096)),
        ({MEMORY: 0}, 1024, None),
        ({MEMORY: "0", COUNT: "0", CORES: "0"}, 1024, None),
        ({COUNT: 1}, 1024, CardRequest(1)),
        ({COUNT: 2, MEMORY: 0}, 1024, CardRequest(2)),
    ],
)
def test_a_container_requests(
    limits: dict[str, Any], unit: int, request_: CardRequest | None
) -> None:
    reading = read(read_gpushare, pod_of(limits), memory_unit=unit)
    assert requests_of(reading) == [request_]
    assert not reading.errors
    assert set(reading.containers[0].resources) == set(limits)


def test_a_pod_without_its_resources_is_none() -> None:
    stamps = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    pod = labelled({"nvidia.com/gpu": 1}, "2", **stamps)
    assert read_gpushare(pod, path="") is None


def test_a_count_of_cards_alone_is_whole_cards_with_a_warning() -> None:
    reading = read(read_gpushare, pod_of({COUNT: 2}))
    assert reading.warnings == ("container c0: aliyun.com/gpu-count gave no card in gpushare",)


def test_containers_that_shared_a_card_are_warned_of() -> None:
    one = pod_of({MEMORY: 2}, {COUNT: 1}, {MEMORY: 0})
    assert "containers may" not in " ".join(read(read_gpushare, one).warnings)
    two = read(read_gpushare, pod_of({MEMORY: 2}, {MEMORY: 3}))
    assert requests_of(two) == [CardRequest(1, memory=2048), CardRequest(1, memory=3072)]
    assert two.warnings == ("containers may get different cards: gpushare put all of a pod on one",)


def test_stamps_of_its_extender_are_removed() -> None:
    stamps = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    pod = pod_of({MEMORY: 2}, **stamps, team="a")
    assert read(read_gpushare, pod).annotations == tuple(stamps)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (
            {MEMORY: 1024},  # as in the extender's issue 76, whose plugin counts MiB
            (
                f'{LIMITS}[{MEMORY}]: Invalid value: "1024": more than any card has: it is '
                "counted in GiB, 1024 MiB are 1"
            ),
        ),
        (
            {MEMORY: 8, COUNT: 4},
            (
                f'{LIMITS}[{COUNT}]: Invalid value: "4": gpushare puts aliyun.com/gpu-mem on one '
                "card: for a part of 4 cards write vcuda-core, vcuda-memory and the annotation "
                "gpu-cards-<container>"
            ),
        ),
        (
            {MEMORY: "5.5"},
            (
                f'{LIMITS}[{MEMORY}]: Invalid value: "5.5": must be a whole number from 0 to '
                "2147483647"
            ),
        ),
        (
            {MEMORY: 6, CORES: 25},
            (
                f'{LIMITS}[{CORES}]: Invalid value: "25": gpushare has no cores: write vcuda-core '
                "and vcuda-memory instead"
            ),
        ),
    ],
)
def test_a_request_that_cannot_be_kept_is_refused(limits: dict[str, Any], error: str) -> None:
    reading = read(read_gpushare, pod_of(limits))
    assert errors_of(reading) == error
    assert requests_of(reading) == [None]


def test_memory_beyond_a_card_in_mib() -> None:
    reading = read(read_gpushare, pod_of({MEMORY: 2**20}), memory_unit=1)
    assert errors_of(reading) == (
        f'{LIMITS}[{MEMORY}]: Invalid value: "1048576": more than any card has, in MiB'
    )


def test_memory_that_a_label_divides_over_cards_is_refused() -> None:
    # Alibaba Cloud's "GPU sharing based on multiple GPUs": 8 GiB of 4 cards are 2 GiB of each
    reading = read(read_gpushare, labelled({MEMORY: 8}, "4"))
    assert errors_of(reading) == (
        'metadata.labels[aliyun.com/gpu-count]: Invalid value: "4": only Alibaba Cloud\'s '
        "scheduler divides aliyun.com/gpu-mem over cards: write vcuda-core, vcuda-memory and the "
        "annotation gpu-cards-<container>"
    )
    assert not read(read_gpushare, labelled({MEMORY: 8}, "1")).errors
