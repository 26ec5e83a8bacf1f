"""elastic-gpu's names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.admission.dialects.reading_pods import (
    errors_of,
    read,
    requests_of,
)
from tests.webhook.admission.dialects.translating import pod_of
from webhook.admission.dialects.elastic_gpu import read_elastic_gpu
from webhook.admission.dialects.reading import CardRequest

CORES, MEMORY = "elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"
COM_CORES, COM_MEMORY = "elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"
LIMITS = "spec.containers[0].resources.limits"


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        ({MEMORY: "256"}, CardRequest(1, memory=256)),  # README of elastic-gpu-scheduler, step 4
        ({CORES: "200"}, CardRequest(2)),  # step 5
        ({COM_CORES: "0", COM_MEMORY: "4"}, CardRequest(1, memory=4)),  # its scheduler_test.go
        ({CORES: 20, MEMORY: 4096}, CardRequest(1, cores=20, memory=4096)),
        ({CORES: 100}, CardRequest(1)),
        ({CORES: 100, MEMORY: 4096}, CardRequest(1)),
        ({CORES: 0, MEMORY: 0}, None),
        ({COM_CORES: 0}, None),
        ({CORES: 0, COM_CORES: 30, MEMORY: 512}, CardRequest(1, cores=30, memory=512)),
    ],
)
def test_a_container_requests(limits: dict[str, Any], request_: CardRequest | None) -> None:
    reading = read(read_elastic_gpu, pod_of(limits))
    assert requests_of(reading) == [request_]
    assert not reading.errors
    assert not reading.warnings
    assert set(reading.containers[0].resources) == set(limits)


@pytest.mark.parametrize(
    ("limits", "request_", "warning"),
    [
        ({CORES: 150}, CardRequest(1), "gpu-core 150 counts as 100, as in elastic-gpu"),
        (
            {CORES: 30},
            CardRequest(1, cores=30, percent=30),
            "no gpu-memory: it gets 30% of a card's, elastic-gpu did not limit it",
        ),
    ],
)
def test_a_setting_that_is_not_kept_is_warned_of(
    limits: dict[str, Any], request_: CardRequest, warning: str
) -> None:
    reading = read(read_elastic_gpu, pod_of(limits))
    assert requests_of(reading) == [request_]
    assert reading.warnings == (f"container c0: {warning}",)


def test_a_pod_without_its_names_is_none() -> None:
    stamps = {"elasticgpu.io/assumed": "true"}
    assert read_elastic_gpu(pod_of({"cpu": 1}, **stamps), path="") is None


def test_stamps_of_its_scheduler_are_removed() -> None:
    stamps = {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-c0": "1"}
    pod = pod_of({MEMORY: 2}, **stamps, team="a")
    assert read(read_elastic_gpu, pod).annotations == tuple(stamps)


def test_a_name_under_both_domains_is_refused() -> None:
    reading = read(read_elastic_gpu, pod_of({CORES: 30, COM_CORES: 40}))
    assert errors_of(reading) == (
        f'{LIMITS}[elasticgpu.com/gpu-core]: Invalid value: "40": elasticgpu.io/gpu-core is there, '
        "too: write one of them"
    )
    assert requests_of(reading) == [None]


def test_a_claim_is_refused() -> None:
    many = pod_of({}, **{f"egpuc.elasticgpu.io/{each}": "" for each in range(1000)})
    assert len(read(read_elastic_gpu, many).errors) == 32
    # README of elastic-gpu: the pod has no resources
    pod = pod_of({}, **{"egpuc.elasticgpu.io/test1": "gpushare-egpuc-1"})
    assert errors_of(read(read_elastic_gpu, pod)) == (
        "metadata.annotations[egpuc.elasticgpu.io/test1]: Invalid value: "
        '"gpushare-egpuc-1": an ElasticGPUClaim is not read: request its cores and memory in limits'
    )


@given(st.integers(0, 1700), st.integers(0, 200_000))
def test_never_more_cards_or_less_memory_than_elastic_gpu_gave(cores: int, memory: int) -> None:
    request = requests_of(read(read_elastic_gpu, pod_of({CORES: cores, MEMORY: memory})))[0]
    assert (request is None) == (cores == memory == 0)
    if request is not None:
        assert request.cards == max(cores // 100, 1)
        assert request.memory in (None, memory)  # None: all of whole cards, or a percentage
        assert (request.cores or 0) == (cores if cores < 100 else 0)
