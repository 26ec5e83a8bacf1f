"""An agent with ``--mode dra``, a kubelet that calls it over its sockets, and the API server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.app.agent import Agent
from agent.settings import AgentMode, EnforcementMode
from simulator.client import ApiClient
from tests.agent.app.whole import page, ready, running
from tests.agent.dra.a_claim import CLAIMS, DRIVER, PODS, SLICES, DraKubelet, add, spec_of
from tests.agent.fakes import NAMES, eventually, make_manifest, make_settings, write_cards
from tests.agent.injection.test_cdi import schema

pytestmark = pytest.mark.slow

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def node(folder: Path, admin: ApiClient) -> Path:
    """A node with two cards of 32 blocks, whose kubelet has a folder."""
    (folder / "p").mkdir()
    write_cards(folder / "cards.yaml")
    admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {}})
    return folder


@contextmanager
def agent_of(node: Path, kubeconfig: Path, **more: Any) -> Iterator[tuple[Agent, DraKubelet]]:
    """An agent that a kubelet has registered."""
    settings = make_settings(
        node,
        mode=AgentMode.DRA,
        cards=node / "cards.yaml",
        kubeconfig=kubeconfig,
        cdi_dir=node / "cdi",
        state_dir=node / "state",
        **more,
    )
    kubelet = DraKubelet(node)
    with running(settings) as agent:
        kubelet.register()
        eventually(lambda: ready(agent), "the agent is ready")
        yield agent, kubelet


def slices(admin: ApiClient) -> list[Any]:
    items: list[Any] = admin.get(SLICES)["items"]
    return items


def test_a_pod_gets_each_request_as_one_cdi_device(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig) as (agent, kubelet):
        assert list(kubelet.services) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        ref = add(admin, "a", ("gpu-0", 30, 4), ("gpu-1", 100, 1))
        entry = kubelet.prepare(ref)[ref.uid]
        assert entry.error == ""
        assert [
            (*each.request_names, each.pool_name, each.device_name, *each.cdi_device_ids)
            for each in entry.devices
        ] == [
            ("c0", "n1", "gpu-0", f"{DRIVER}/claim={ref.uid}-0"),
            ("c1", "n1", "gpu-1", f"{DRIVER}/claim={ref.uid}-1"),
        ]
        assert entry.devices[0].share_id == "share-c0-gpu-0"
        spec = spec_of(node / "cdi", ref)
        schema().validate(spec)
        assert [each["containerEdits"]["env"] for each in spec["devices"]] == [
            ["NVIDIA_VISIBLE_DEVICES=GPU-0"],
            ["NVIDIA_VISIBLE_DEVICES=GPU-1"],
        ]

        def annotated() -> Any:
            pod = admin.get(f"{PODS}/a")["metadata"]["annotations"]
            return json.loads(pod.get(NAMES.gpu_allocation, "{}"))

        eventually(annotated, "the allocation is written")
        assert annotated()["c0"] == {
            "cards": ["GPU-0"], "cores": 30, "memoryBlocks": 4, "evidence": "claim"
        }  # fmt: skip
        held = 'gpu_turnstile_agent_decisions_total{call="prepare",evidence="claim"} 1.0'
        assert held in page(agent, "/metrics")[1]
        assert kubelet.unprepare(ref)[ref.uid].error == ""
        assert kubelet.unprepare(ref)[ref.uid].error == ""
        assert not list((node / "cdi").glob("*.json"))


def test_the_specs_are_the_memory_of_the_next_agent(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig) as (_, kubelet):
        kept = add(admin, "kept", ("gpu-0", 60, 4))
        gone = add(admin, "gone", ("gpu-1", 60, 4))
        first = kubelet.prepare(kept, gone)
        before = spec_of(node / "cdi", kept)
    admin.delete(f"{CLAIMS}/{gone.name}")
    with agent_of(node, kubeconfig) as (_, kubelet):
        eventually(
            lambda: len(list((node / "cdi").glob("*.json"))) == 1, "the other claim is forgotten"
        )
        twice = add(admin, "twice", ("gpu-0", 50, 4))
        assert kubelet.prepare(twice)[twice.uid].error == (
            "claim default/twice-gpus: 50 cores of card GPU-0, but 60 of 100 are held by "
            "default/kept-gpus: it starts once they have ended"
        )
        assert kubelet.prepare(kept)[kept.uid] == first[kept.uid]
        assert spec_of(node / "cdi", kept) == before
        kubelet.unprepare(kept)
        assert kubelet.prepare(twice)[twice.uid].error == ""
        reasons = {each["reason"] for each in admin.get("/api/v1/events")["items"]}
        assert "GPURefused" in reasons or eventually(
            lambda: "GPURefused" in str(admin.get("/api/v1/events")), "the refusal is an Event"
        )


def test_a_reboot_that_empties_the_folder_costs_nothing(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig) as (_, kubelet):
        ref = add(admin, "a", ("gpu-0", 30, 4))
        kubelet.prepare(ref)
        before = spec_of(node / "cdi", ref)
        (node / "cdi" / f"gpu-turnstile-claim-{ref.uid}.json").unlink()
        assert kubelet.prepare(ref)[ref.uid].error == ""
        assert spec_of(node / "cdi", ref) == before


def test_limits_are_in_the_spec(node: Path, kubeconfig: Path, admin: ApiClient) -> None:
    library = node / "hami"
    library.mkdir()
    (library / "libvgpu.so").write_bytes(b"")
    more = {"enforcement": EnforcementMode.HAMI_CORE, "hami_library_dir": library}
    with agent_of(node, kubeconfig, **more) as (_, kubelet):
        ref = add(admin, "a", ("gpu-0", 30, 4), ("gpu-1", 100, 1))
        entry = kubelet.prepare(ref)[ref.uid]
        assert entry.error == ""
        share, whole = (each["containerEdits"] for each in spec_of(node / "cdi", ref)["devices"])
        assert {"CUDA_DEVICE_SM_LIMIT=30", "CUDA_DEVICE_MEMORY_LIMIT_0=1024m"} <= {*share["env"]}
        assert whole["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-1"]
        (shared,) = [each for each in share["mounts"] if each["options"][0] == "rw"]
        assert Path(shared["hostPath"]).is_file()


def test_slices_follow_cordons_and_come_back(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig):
        (found,) = eventually(lambda: slices(admin), "the slice is published")
        uid = admin.get(NODE)["metadata"]["uid"]
        assert found["metadata"]["ownerReferences"][0]["uid"] == uid
        assert found["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        device = found["spec"]["devices"][0]
        assert device["capacity"]["cores"] == {
            "value": "100",
            "requestPolicy": {
                "default": "1",
                "validRange": {"min": "1", "max": "100", "step": "1"},
            },
        }
        assert device["attributes"]["model"] == {"string": "fake"}
        admin.patch(NODE, {"metadata": {"annotations": {NAMES.gpu_cordoned: "GPU-1"}}})
        eventually(
            lambda: "taints" in slices(admin)[0]["spec"]["devices"][1], "the card is tainted"
        )
        assert slices(admin)[0]["spec"]["devices"][1]["taints"] == [
            {"key": "tencent.com/cordoned", "value": "cordoned", "effect": "NoSchedule"}
        ]
        assert slices(admin)[0]["spec"]["pool"]["generation"] == 2
        admin.delete(f"{SLICES}/n1-{DRIVER}")
        eventually(lambda: slices(admin), "the slice is published again")
    assert slices(admin), "the agent's end leaves the slice"


def test_counts_wait_until_the_kubelet_has_forgotten_the_plugin(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    checkpoint = node / "p" / "kubelet_internal_checkpoint"
    checkpoint.write_text(json.dumps({"Data": {"RegisteredDevices": {NAMES.core: []}}}))

    def counts() -> Any:
        status = admin.get(NODE).get("status") or {}
        return (status.get("allocatable") or {}).get(NAMES.core)

    def gauge() -> str:
        (line,) = [
            each
            for each in page(agent, "/metrics")[1].splitlines()
            if each.startswith("gpu_turnstile_agent_counts_problem ")
        ]
        return line.split()[-1]

    with agent_of(node, kubeconfig) as (agent, _):
        assert counts() is None
        eventually(lambda: gauge() == "1.0", "the gauge shows it")
        checkpoint.write_text(json.dumps({"Data": {"RegisteredDevices": {}}}))
        eventually(lambda: counts() == "200", "the counts are written")
        eventually(lambda: gauge() == "0.0", "the gauge shows it")
        admin.patch(f"{NODE}/status", {"status": {"allocatable": {NAMES.core: "0"}}})
        eventually(lambda: counts() == "200", "the counts are put back")


def test_the_health_of_devices_is_streamed(node: Path, kubeconfig: Path, admin: ApiClient) -> None:
    with agent_of(node, kubeconfig) as (_, kubelet), kubelet.health() as stream:
        devices = next(stream).devices
        assert [(each.device.device_name, each.health) for each in devices] == [
            ("gpu-0", 1), ("gpu-1", 1)
        ]  # fmt: skip


def events(admin: ApiClient) -> set[tuple[str, str, str]]:
    """The reason, the kind and the name of each Event's object."""
    return {
        (each["reason"], each["involvedObject"]["kind"], each["involvedObject"]["name"])
        for each in admin.get("/api/v1/events")["items"]
    }


def test_a_card_that_has_gone_is_an_event(node: Path, kubeconfig: Path, admin: ApiClient) -> None:
    with agent_of(node, kubeconfig) as (_, kubelet):
        kubelet.prepare(add(admin, "lost", ("gpu-1", 60, 4)), add(admin, "a", ("gpu-0", 60, 4)))
    write_cards(node / "cards.yaml", cards=1)
    with agent_of(node, kubeconfig) as _:
        expected = {("GPUMissing", "Pod", "lost"), ("GPUMissing", "Node", "n1")}
        eventually(lambda: events(admin) >= expected, "the Events")
        assert ("GPUMissing", "Pod", "a") not in events(admin)


def test_a_pod_that_runs_without_a_claim_is_an_event(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    """As after a reboot, a claim is allocated but not prepared, and its pod counts as running."""
    add(admin, "after-reboot", ("gpu-0", 30, 4))
    admin.create(PODS, make_manifest("bare", (30, 4)))
    admin.create(PODS, make_manifest("waits", (30, 4)))
    for name in ("after-reboot", "bare"):
        admin.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
    with agent_of(node, kubeconfig) as _:
        eventually(lambda: ("GPUNotClaimed", "Pod", "bare") in events(admin), "the Event")
        assert {name for reason, _, name in events(admin) if reason == "GPUNotClaimed"} == {"bare"}
