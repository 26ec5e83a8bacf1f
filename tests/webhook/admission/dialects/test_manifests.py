"""Example manifests of vgpu-manager, gpushare, elastic-gpu and KAI: what their pods become.

Only the facts that GPUs depend on are repeated, with the file of the system's repository.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.requests import read_pod_demand
from tests.examples import share
from tests.webhook.admission.building import ANY, Json, applied, decide
from tests.webhook.admission.dialects.translating import (
    ACCEPT,
    NAMES,
    became,
    pod_of,
    translated,
    warnings_of,
    wishes_of,
)
from webhook.admission.dialects.registry import Dialect, read_dialects

UNLIMITED = {"vcuda-core-limit": "100"}
KAI_STAYS = "spec.schedulerName: kai-scheduler stays, its queues do not count these cards"


def vgpu(number: int, cores: int | None = None, memory: int | None = None) -> dict[str, Any]:
    counts = {"vgpu-number": number, "vgpu-cores": cores, "vgpu-memory": memory}
    return {f"nvidia.com/{key}": value for key, value in counts.items() if value is not None}


def mem(units: int) -> dict[str, Any]:
    return {"aliyun.com/gpu-mem": units}


def case(
    dialect: str,
    source: str,
    limits: dict[str, Any],
    becomes: dict[str, int],
    wishes: dict[str, str] | None = None,
    /,
    **annotations: str,
) -> Any:
    return pytest.param(
        dialect, limits, annotations, becomes, wishes or {}, id=f"{dialect} {source}"
    )


@pytest.mark.parametrize(
    ("dialect", "limits", "annotations", "becomes", "wishes"),
    [
        case("vgpu-manager", "README.md", vgpu(1, 10, 1024), {"cores": 10, "blocks": 4}),
        case(
            "vgpu-manager",
            "example/kueue/sample.yaml",
            vgpu(2, 30, 1024),
            {"cores": 60, "blocks": 8, "cards": 2},
            {"gpu-cards-c0": "2"},
        ),
        case(
            "vgpu-manager",
            "example/kueue/topology-aware.yaml",
            vgpu(8),
            {"cores": 800},
            **{
                "nvidia.com/device-topology-mode": "link",
                "nvidia.com/cross-pod-topology": "true",
            },
        ),
        case("vgpu-manager", "docs/how_to_use_vgpu_resource_quota.md", vgpu(1), {"cores": 100}),
        case(
            "vgpu-manager",
            "docs/how_to_use_gpu_topology.md",
            vgpu(2, None, 10000),
            {"cores": 2, "blocks": 80, "cards": 2},
            {"gpu-cards-c0": "2", "gpu-link": "numa", **UNLIMITED},
            **{"nvidia.com/device-topology-mode": "numa-strict"},
        ),
        case("gpushare", "samples/1.yaml", mem(2), {"cores": 1, "blocks": 8}, UNLIMITED),
        case("gpushare", "docs/userguide.md", mem(3), {"cores": 1, "blocks": 12}, UNLIMITED),
        case("gpushare-mib", "samples/4.yaml", mem(16276), {"cores": 1, "blocks": 64}, UNLIMITED),
        case(
            "gpushare-mib",
            "docs/designs/designs.md",
            mem(8138),
            {"cores": 1, "blocks": 32},
            UNLIMITED,
        ),
        case(
            "elastic-gpu",
            "README.md 4",
            {"elasticgpu.io/gpu-memory": "256"},
            {"cores": 1, "blocks": 1},
            UNLIMITED,
        ),
        case("elastic-gpu", "README.md 5", {"elasticgpu.io/gpu-core": "200"}, {"cores": 200}),
        case(
            "elastic-gpu",
            "cores alone",
            {"elasticgpu.com/gpu-core": "30"},
            {"cores": 30, "blocks": 28},
        ),
        case(
            "kai",
            "docs/gpu-sharing/gpu-sharing.yaml",
            {},
            {"cores": 1, "blocks": 48},
            UNLIMITED,
            **{"gpu-fraction": "0.5"},
        ),
        case(
            "kai",
            "docs/gpu-sharing/gpu-memory.yaml",
            {},
            {"cores": 1, "blocks": 8},
            UNLIMITED,
            **{"gpu-memory": "2000"},
        ),
        case(
            "kai",
            "three on a card",
            {},
            {"cores": 1, "blocks": 31},
            UNLIMITED,
            **{"gpu-fraction": "0.333"},
        ),
        case(
            "kai",
            "issue 1521",
            {},
            {"cores": 4, "blocks": 192, "cards": 4},
            {"gpu-cards-c0": "4", **UNLIMITED},
            **{"gpu-fraction": "0.5", "gpu-fraction-num-devices": "4"},
        ),
    ],
)
def test_a_manifest_becomes(
    dialect: str,
    limits: dict[str, Any],
    annotations: dict[str, str],
    becomes: dict[str, int],
    wishes: dict[str, str],
) -> None:
    pod = pod_of(limits, **annotations)
    options = replace(ACCEPT, accept=frozenset({Dialect(dialect)}))
    assert became(pod, options) == [becomes]
    assert wishes_of(pod, options) == wishes


@pytest.mark.parametrize(
    ("container", "field"), [("gpu-workload", "containers"), ("gpu-init", "initContainers")]
)
def test_kai_gives_its_part_to_the_named_container(container: str, field: str) -> None:
    # docs/gpu-sharing: gpu-sharing-non-default-container.yaml, gpu-sharing-init-container.yaml
    named = {"gpu-fraction": "0.5", "gpu-fraction-container-name": container}
    pod: Json = {"metadata": {"annotations": named}, "spec": {"containers": [{"name": "sidecar"}]}}
    pod["spec"].setdefault(field, []).append({"name": container})
    spec = translated(pod)["spec"]
    found = {
        each["name"]: each["resources"]["limits"]
        for listed in (spec["containers"], spec.get("initContainers", []))
        for each in listed
        if "resources" in each
    }
    assert found == {container: {NAMES.core: "1", NAMES.memory: "48"}}


@pytest.mark.parametrize(
    ("pod", "left", "warning"),
    [
        (
            pod_of(vgpu(1, 10, 1024)),
            None,
            "schedulerName vgpu-scheduler is left out: it knows only vgpu-manager's resources",
        ),
        (pod_of({}, **{"gpu-fraction": "0.5"}), "kai-scheduler", KAI_STAYS),
    ],
)
def test_a_scheduler_that_only_chooses_cards_is_left_out_and_one_with_queues_stays(
    pod: Json, left: str | None, warning: str
) -> None:
    named = "kai-scheduler" if left else "vgpu-scheduler"
    pod = pod | {"spec": pod["spec"] | {"schedulerName": named}}
    assert translated(pod)["spec"].get("schedulerName") == left
    assert warnings_of(pod) == (warning,)


_RESOURCES = (
    *vgpu(1, 1, 1),
    *mem(1),
    "aliyun.com/gpu-count",
    "elasticgpu.io/gpu-core",
    "elasticgpu.com/gpu-memory",
)
_ANNOTATIONS = (
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "nvidia.com/include-gpu-uuid",
    "nvidia.com/device-topology-mode",
)


@pytest.mark.parametrize(
    "dialect", ["vgpu-manager", "gpushare", "gpushare-mib", "elastic-gpu", "kai"]
)
@given(
    limits=st.dictionaries(st.sampled_from(_RESOURCES), st.integers(0, 2**33) | ANY),
    annotations=st.dictionaries(st.sampled_from(_ANNOTATIONS), st.sampled_from(["0.5", "3"]) | ANY),
    largest_card=st.sampled_from([0, 96]),
)
@settings(max_examples=share(50))
def test_a_translated_pod_requests_nothing_of_the_other_system(
    dialect: str, limits: dict[str, Any], annotations: dict[str, Any], largest_card: int
) -> None:
    pod = pod_of(limits, **annotations)
    options = replace(ACCEPT, accept=frozenset({Dialect(dialect)}), largest_card=largest_card)
    decision = decide(pod, options)
    if decision.allowed and any("translated from" in each for each in decision.warnings):
        after = applied(pod, decision)
        assert not read_dialects(after, options.accept, path="")
        demand, errors = read_pod_demand(after, NAMES)
        assert demand.containers
        assert not errors
