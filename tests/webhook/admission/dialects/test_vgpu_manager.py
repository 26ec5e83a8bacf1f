"""vgpu-manager's names."""

from typing import Any

import pytest

from tests.webhook.admission.dialects.reading_pods import (
    errors_of,
    read,
    requests_of,
)
from tests.webhook.admission.dialects.translating import pod_of
from webhook.admission.dialects.reading import CardRequest
from webhook.admission.dialects.vgpu_manager import read_vgpu_manager

NUMBER, CORES, MEMORY = (f"nvidia.com/vgpu-{each}" for each in ("number", "cores", "memory"))
LIMITS = "spec.containers[0].resources.limits"
UUID = "GPU-49aa2e6a-33f3-99dd-e08b-ea4beb0e0d28"  # of its README
TWO = {NUMBER: 2, MEMORY: 10000}  # docs/how_to_use_gpu_topology.md


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        # README.md
        ({NUMBER: 1, CORES: 10, MEMORY: 1024}, CardRequest(1, cores=10, memory=1024)),
        # example/kueue/sample.yaml
        ({NUMBER: "2", CORES: "30", MEMORY: "1024"}, CardRequest(2, cores=30, memory=1024)),
        ({NUMBER: "8"}, CardRequest(8)),  # example/kueue/topology-aware.yaml: whole cards
        ({NUMBER: 1}, CardRequest(1)),  # docs/how_to_use_vgpu_resource_quota.md
        (TWO, CardRequest(2, memory=10000)),
        ({CORES: 30}, CardRequest(1, cores=30)),
        ({MEMORY: 4096}, CardRequest(1, memory=4096)),
        ({NUMBER: 0, CORES: 100, MEMORY: 4096}, CardRequest(1, cores=100, memory=4096)),
        ({NUMBER: 16, CORES: 0, MEMORY: 0}, CardRequest(16)),
        ({NUMBER: 0}, None),
        ({NUMBER: 0, CORES: 0, MEMORY: "0"}, None),
    ],
)
def test_a_container_requests(limits: dict[str, Any], request_: CardRequest | None) -> None:
    reading = read(read_vgpu_manager, pod_of(limits))
    assert requests_of(reading) == [request_]
    assert not reading.errors
    assert not reading.warnings
    assert set(reading.containers[0].resources) == set(limits)


def test_init_containers_come_first() -> None:
    pod = pod_of({"cpu": 1}, {NUMBER: 1})
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {NUMBER: 2}}}]
    containers = read(read_vgpu_manager, pod).containers
    found = [(each.field, each.index, each.request) for each in containers]
    assert found == [("initContainers", 0, CardRequest(2)), ("containers", 1, CardRequest(1))]


def test_a_pod_without_its_resources_is_none() -> None:
    pod = pod_of({"nvidia.com/gpu": 1}, **{"nvidia.com/include-gpu-type": "A10"})
    assert read_vgpu_manager(pod, path="") is None


def test_requests_count_as_limits_do() -> None:
    container = {"name": "c0", "resources": {"requests": {NUMBER: 2}}}
    pod = {"spec": {"containers": [container]}}
    assert requests_of(read(read_vgpu_manager, pod)) == [CardRequest(2)]
    container["resources"] = {"limits": {NUMBER: 2}, "requests": {NUMBER: "1"}}
    assert errors_of(read(read_vgpu_manager, pod)) == (
        f'spec.containers[0].resources.requests[{NUMBER}]: Invalid value: "1": must be equal to '
        "limits (2): leave it out of requests"
    )


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        (
            {"nvidia.com/include-gpu-type": "A10", "nvidia.com/exclude-gpu-type": "A100"},
            {"use-gpu-type": "A10", "nouse-gpu-type": "A100"},
        ),
        ({"nvidia.com/include-gpu-uuid": UUID}, {"use-gpu-uuid": UUID}),
        (
            {"nvidia.com/exclude-gpu-uuid": f" ,{UUID.upper()},"},
            {"nouse-gpu-uuid": UUID},
        ),
        (
            {
                "nvidia.com/node-scheduler-policy": "spread",
                "nvidia.com/device-scheduler-policy": "Binpack",
            },
            {"gpu-node-policy": "spread", "gpu-policy": "binpack"},
        ),
        ({"nvidia.com/node-scheduler-policy": "none"}, {}),
        ({"nvidia.com/device-scheduler-policy": "fastest"}, {}),
        ({"nvidia.com/device-topology-mode": "none"}, {}),
        ({"nvidia.com/device-topology-mode": "numa"}, {}),
        ({"nvidia.com/device-topology-mode": "link"}, {}),
        ({"nvidia.com/device-topology-mode": "link-strict"}, {"gpu-link": "nvlink"}),
        ({"nvidia.com/device-topology-mode": "NUMA-strict"}, {"gpu-link": "numa"}),
        ({"nvidia.com/vgpu-compute-policy": "fixed"}, {}),
        ({"nvidia.com/vgpu-compute-policy": "balance"}, {"vcuda-core-limit": "100"}),
        ({"nvidia.com/memory-scheduler-policy": "physical"}, {}),
        ({"nvidia.com/include-gpu-type": ""}, {}),
    ],
)
def test_its_annotations_become_wishes(annotations: dict[str, str], wishes: dict[str, str]) -> None:
    reading = read(read_vgpu_manager, pod_of(TWO, **annotations, team="a"))
    assert reading.wishes == wishes
    assert set(reading.annotations) == set(annotations)
    assert not reading.errors
    assert not reading.warnings


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("device-topology-mode", "link-strict", "{}: link-strict is not kept for a single card"),
        ("vgpu-compute-policy", "none", "{}: none is not kept while others compute"),
        ("memory-scheduler-policy", "virtual", "{} is not kept: memory is not oversubscribed"),
        ("cross-pod-topology", "true", "{} is not kept"),
    ],
)
def test_a_setting_that_is_not_kept_is_warned_of(name: str, value: str, line: str) -> None:
    key = f"nvidia.com/{name}"
    reading = read(read_vgpu_manager, pod_of({NUMBER: 1}, **{key: value}))
    assert reading.warnings == (line.format(key),)
    assert "gpu-link" not in (reading.wishes or {})


def test_virtual_memory_its_scheduler_and_its_stamps_are_not_kept() -> None:
    # docs/how_to_use_gpu_virtual_memory.md
    stamps = {"nvidia.com/predicate-node": "n1", "nvidia.com/pre-allocated": "x"}
    pod = pod_of({NUMBER: 1}, **stamps)
    pod["spec"]["containers"][0]["env"] = [{"name": "CUDA_MEM_OVERSOLD", "value": "true"}]
    reading = read(read_vgpu_manager, pod)
    assert requests_of(reading) == [CardRequest(1)]
    assert set(reading.annotations) == set(stamps)
    assert reading.schedulers == ("vgpu-scheduler",)
    assert reading.warnings == (
        "container c0: CUDA_MEM_OVERSOLD is not kept: memory is not oversubscribed",
    )


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (
            {NUMBER: 17},
            (f'{LIMITS}[{NUMBER}]: Invalid value: "17": must be at most 16, as in vgpu-manager'),
        ),
        (
            {NUMBER: 1, CORES: 150},
            (f'{LIMITS}[{CORES}]: Invalid value: "150": must be at most 100, as in vgpu-manager'),
        ),
        (
            {NUMBER: 1, MEMORY: "-1"},
            f'{LIMITS}[{MEMORY}]: Invalid value: "-1": must be a whole number from 0 to 2147483647',
        ),
    ],
)
def test_a_request_that_cannot_be_kept_is_refused(limits: dict[str, Any], error: str) -> None:
    reading = read(read_vgpu_manager, pod_of(limits))
    assert errors_of(reading) == error
    assert requests_of(reading) == [None]


@pytest.mark.parametrize("part", ["49aa2e6a", "GPU-49aa2e6a", f"{UUID}, GPU-1", UUID[4:]])
def test_a_part_of_a_uuid_is_refused(part: str) -> None:
    pod = pod_of({NUMBER: 1}, **{"nvidia.com/exclude-gpu-uuid": part})
    assert errors_of(read(read_vgpu_manager, pod)) == (
        f'metadata.annotations[nvidia.com/exclude-gpu-uuid]: Invalid value: "{part}": must be '
        "whole UUIDs (GPU-49aa2e6a-33f3-...): a part of one matches no card here"
    )
