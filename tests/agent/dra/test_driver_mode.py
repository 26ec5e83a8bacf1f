"""An agent with ``--mode dra``, a kubelet that calls it over its sockets, and the API server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.app.agent import Agent
from agent.settings import AgentMode
from simulator.client import ApiClient
from tests.agent.app.whole import events, metrics, ready, running
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
        schema().validate(spec_of(node / "cdi", ref))

        def annotated() -> Any:
            pod = admin.get(f"{PODS}/a")["metadata"]["annotations"]
            return json.loads(pod.get(NAMES.gpu_allocation, "{}"))

        eventually(annotated, "the allocation is written")
        assert annotated()["c0"] == {
            "cards": ["GPU-0"], "cores": 30, "memoryBlocks": 4, "evidence": "claim"
        }  # fmt: skip
        assert 'decisions_total{call="prepare",evidence="claim"} 1.0' in metrics(agent)
        assert kubelet.unprepare(ref)[ref.uid].error == ""
        assert kubelet.unprepare(ref)[ref.uid].error == ""
        assert not list((node / "cdi").glob("*.json"))


def test_the_specs_are_the_memory_of_the_next_agent(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig) as (_, kubelet):
        kept = add(admin, "kept", ("gpu-0", 60, 4))
        deleted = add(admin, "deleted", ("gpu-1", 60, 4))
        first = kubelet.prepare(kept, deleted)
        before = spec_of(node / "cdi", kept)
    admin.delete(f"{CLAIMS}/{deleted.name}")
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
        eventually(lambda: "GPURefused" in str(events(admin)), "the refusal is an Event")


def test_slices_follow_cordons_and_come_back(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig):
        (found,) = eventually(lambda: slices(admin), "the slice is published")
        uid = admin.get(NODE)["metadata"]["uid"]
        assert found["metadata"]["ownerReferences"][0]["uid"] == uid
        assert found["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        assert found["spec"]["devices"][0]["attributes"]["model"] == {"string": "fake"}
        admin.patch(NODE, {"metadata": {"annotations": {NAMES.gpu_cordoned: "GPU-1"}}})
        eventually(
            lambda: "taints" in slices(admin)[0]["spec"]["devices"][1], "the card is tainted"
        )
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

    def shown(value: str) -> None:
        sample = f"counts_problem {value}"
        eventually(lambda: sample in metrics(agent), sample)

    with agent_of(node, kubeconfig) as (agent, _):
        assert counts() is None
        shown("1.0")
        checkpoint.write_text(json.dumps({"Data": {"RegisteredDevices": {}}}))
        eventually(lambda: counts() == "200", "the counts are written")
        shown("0.0")
        admin.patch(f"{NODE}/status", {"status": {"allocatable": {NAMES.core: "0"}}})
        eventually(lambda: counts() == "200", "the counts are put back")


def test_missing_cards_and_pods_without_a_claim_are_events(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    """As after a reboot, a claim is allocated but not prepared, and its pod counts as running."""
    with agent_of(node, kubeconfig) as (_, kubelet):
        kubelet.prepare(add(admin, "lost", ("gpu-1", 60, 4)), add(admin, "a", ("gpu-0", 60, 4)))
    write_cards(node / "cards.yaml", cards=1)
    add(admin, "after-reboot", ("gpu-0", 30, 4))
    for name in ("bare", "waits"):
        admin.create(PODS, make_manifest(name, (30, 4)))
    for name in ("after-reboot", "bare"):
        admin.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
    expected = {"GPUMissing": {"lost", "n1"}, "GPUNotClaimed": {"bare"}}

    def subjects() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in events(admin):
            found.setdefault(each["reason"], set()).add(each["involvedObject"]["name"])
        return found

    with agent_of(node, kubeconfig):
        eventually(lambda: subjects() == expected, "the Events")
