"""Example manifests of other systems, as their repositories have them: what their pods become.

Only the facts that GPUs depend on are repeated. A card has 96 blocks of 256 MiB here, 24 GiB.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.requests import read_pod_demand
from tests.examples import share
from tests.webhook.admission.building import ANY, applied, decide
from webhook.admission.dialects.registry import Dialect, read_dialects
from webhook.admission.options import DEFAULTS

NAMES = Names()
CORE, BLOCKS = NAMES.core, NAMES.memory


def pod_of(
    limits: dict[str, Any] | None = None,
    *,
    annotations: dict[str, str] | None = None,
    name: str = "main",
    **spec: Any,
) -> dict[str, Any]:
    container = {"name": name, **({"resources": {"limits": limits}} if limits else {})}
    metadata = {"name": "pod", **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def vgpu(number: int, cores: int | None = None, memory: int | None = None) -> dict[str, Any]:
    counts = {"vgpu-number": number, "vgpu-cores": cores, "vgpu-memory": memory}
    return {f"nvidia.com/{key}": value for key, value in counts.items() if value is not None}


def vgpu_pod(limits: dict[str, Any], **annotations: str) -> dict[str, Any]:
    given = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return pod_of(limits, annotations=given, schedulerName="vgpu-scheduler")


def kai_pod(annotations: dict[str, str]) -> dict[str, Any]:
    pod = pod_of(annotations=annotations, schedulerName="kai-scheduler")
    pod["metadata"]["labels"] = {"kai.scheduler/queue": "default-queue"}
    return pod


def mem(units: int) -> dict[str, int]:
    return {"aliyun.com/gpu-mem": units}


@pytest.mark.parametrize(
    ("dialect", "pod", "limits", "wishes"),
    [
        pytest.param(
            "vgpu-manager",
            vgpu_pod(vgpu(1, 10, 1024)),
            {CORE: "10", BLOCKS: "4"},
            {},
            id="vgpu-manager README.md",
        ),
        pytest.param(
            "vgpu-manager",
            vgpu_pod(vgpu(2, 30, 1024)),
            {CORE: "60", BLOCKS: "8"},
            {"gpu-cards-main": "2"},
            id="vgpu-manager example/kueue/sample.yaml",
        ),
        pytest.param(
            "vgpu-manager",
            vgpu_pod(vgpu(8), device_topology_mode="link", cross_pod_topology="true"),
            {CORE: "800"},
            {},
            id="vgpu-manager example/kueue/topology-aware.yaml",
        ),
        pytest.param(
            "vgpu-manager",
            vgpu_pod(vgpu(1)),
            {CORE: "100"},
            {},
            id="vgpu-manager docs/how_to_use_vgpu_resource_quota.md",
        ),
        pytest.param(
            "vgpu-manager",
            vgpu_pod(vgpu(2, None, 10000), device_topology_mode="numa-strict"),
            {CORE: "2", BLOCKS: "80"},
            {"gpu-cards-main": "2", "gpu-link": "numa", "vcuda-core-limit": "100"},
            id="vgpu-manager docs/how_to_use_gpu_topology.md, strict",
        ),
        pytest.param(
            "gpushare",
            pod_of(mem(2)),
            {CORE: "1", BLOCKS: "8"},
            {"vcuda-core-limit": "100"},
            id="gpushare samples/1.yaml",
        ),
        pytest.param(
            "gpushare",
            pod_of(mem(3)),
            {CORE: "1", BLOCKS: "12"},
            {"vcuda-core-limit": "100"},
            id="gpushare docs/userguide.md",
        ),
        pytest.param(
            "gpushare-mib",
            pod_of(mem(16276)),
            {CORE: "1", BLOCKS: "64"},
            {"vcuda-core-limit": "100"},
            id="gpushare samples/4.yaml",
        ),
        pytest.param(
            "gpushare-mib",
            pod_of(mem(8138)),
            {CORE: "1", BLOCKS: "32"},
            {"vcuda-core-limit": "100"},
            id="gpushare docs/designs/designs.md",
        ),
        pytest.param(
            "elastic-gpu",
            pod_of({"elasticgpu.io/gpu-memory": "256"}),
            {CORE: "1", BLOCKS: "1"},
            {"vcuda-core-limit": "100"},
            id="elastic-gpu-scheduler README.md, one GPU shared",
        ),
        pytest.param(
            "elastic-gpu",
            pod_of({"elasticgpu.io/gpu-core": "200"}),
            {CORE: "200"},
            {},
            id="elastic-gpu-scheduler README.md, several cards",
        ),
        pytest.param(
            "elastic-gpu",
            pod_of({"elasticgpu.com/gpu-core": "30"}),
            {CORE: "30", BLOCKS: "28"},
            {},
            id="elastic-gpu, cores without memory",
        ),
        pytest.param(
            "kai",
            kai_pod({"gpu-fraction": "0.5"}),
            {CORE: "1", BLOCKS: "48"},
            {"vcuda-core-limit": "100"},
            id="kai docs/gpu-sharing/gpu-sharing.yaml",
        ),
        pytest.param(
            "kai",
            kai_pod({"gpu-memory": "2000"}),
            {CORE: "1", BLOCKS: "8"},
            {"vcuda-core-limit": "100"},
            id="kai docs/gpu-sharing/gpu-memory.yaml",
        ),
        pytest.param(
            "kai",
            kai_pod({"gpu-fraction": "0.333"}),
            {CORE: "1", BLOCKS: "31"},
            {"vcuda-core-limit": "100"},
            id="kai, three on a card",
        ),
        pytest.param(
            "kai",
            kai_pod({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "4"}),
            {CORE: "4", BLOCKS: "192"},
            {"gpu-cards-main": "4", "vcuda-core-limit": "100"},
            id="kai issue 1521",
        ),
    ],
)
def test_a_manifest_becomes(
    dialect: str, pod: dict[str, Any], limits: dict[str, str], wishes: dict[str, str]
) -> None:
    options = replace(DEFAULTS, accept=frozenset({Dialect(dialect)}), largest_card=96)
    decision = decide(pod, options)
    assert not decision.errors
    after = applied(pod, decision)
    assert after["spec"]["containers"][0]["resources"]["limits"] == limits
    annotations = after["metadata"]["annotations"]
    for wish in ("gpu-cards-main", "gpu-link", "vcuda-core-limit"):
        assert annotations.get(f"{NAMES.domain}/{wish}") == wishes.get(wish)
    assert not [key for key in annotations if not key.startswith(NAMES.domain)]
    scheduler = after["spec"].get("schedulerName")
    assert scheduler == ("kai-scheduler" if dialect == "kai" else None)
    assert any(f"translated from {dialect}" in each for each in decision.warnings)


@pytest.mark.parametrize(
    ("container", "field"), [("gpu-workload", "containers"), ("gpu-init", "initContainers")]
)
def test_kai_gives_its_part_to_the_named_container(container: str, field: str) -> None:
    # docs/gpu-sharing: gpu-sharing-non-default-container.yaml, gpu-sharing-init-container.yaml
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": container}
    pod = pod_of(annotations=annotations, name="sidecar")
    pod["spec"].setdefault(field, []).append({"name": container})
    options = replace(DEFAULTS, accept=frozenset({Dialect.KAI}), largest_card=96)
    spec = applied(pod, decide(pod, options))["spec"]
    found = {
        each["name"]: each["resources"]["limits"]
        for listed in (spec["containers"], spec.get("initContainers", []))
        for each in listed
        if "resources" in each
    }
    assert found == {container: {CORE: "1", BLOCKS: "48"}}


OURS = ("vgpu-manager", "gpushare", "gpushare-mib", "elastic-gpu", "kai")
RESOURCES = (
    *vgpu(1, 1, 1),
    *mem(1),
    "aliyun.com/gpu-count",
    "elasticgpu.io/gpu-core",
    "elasticgpu.com/gpu-memory",
)
ANNOTATIONS = (
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "nvidia.com/include-gpu-uuid",
    "nvidia.com/device-topology-mode",
)


@pytest.mark.parametrize("dialect", OURS)
@given(
    limits=st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 2**33) | ANY),
    annotations=st.dictionaries(st.sampled_from(ANNOTATIONS), st.sampled_from(["0.5", "3"]) | ANY),
    largest_card=st.sampled_from([0, 96]),
)
@settings(max_examples=share(50))
def test_no_pod_raises_and_what_is_allowed_requests_nothing_of_another_system(
    dialect: str, limits: dict[str, Any], annotations: dict[str, Any], largest_card: int
) -> None:
    pod = pod_of(limits, annotations=annotations)
    options = replace(DEFAULTS, accept=frozenset({Dialect(dialect)}), largest_card=largest_card)
    decision = decide(pod, options)
    if decision.allowed and any("translated from" in each for each in decision.warnings):
        after = applied(pod, decision)
        readings = read_dialects(after, options.accept, path="")
        assert not readings
        demand, errors = read_pod_demand(after, NAMES)
        assert demand.containers
        assert not errors
