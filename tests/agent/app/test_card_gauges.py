"""The gauges of held and used cards of a whole agent, with two pods on two cards."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.app import card_gauges
from agent.runtime.cgroups import Cgroups
from agent.settings import MetricsNames, Settings
from agent.usage import join
from contract.inventory import NOTHING, Card, PublishedInventory, encode_inventory
from simulator.client import ApiClient
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import serve
from tests.agent.app.whole import PODS, events, page, ready, running
from tests.agent.fakes import eventually, make_manifest
from tests.agent.nvml_node import GIB, NvmlScript
from tests.agent.runtime.test_cri import FakeRuntime, entry
from tests.placement.cluster.builders import bare_node
from view.cluster.agents import parse_samples
from view.model.state import ClusterState
from view.model.usage import read_usage
from view.model.usage_history import GroupBy, usage_rows

pytestmark = pytest.mark.slow
ID_A, ID_B = "a" * 64, "b" * 64


@pytest.fixture
def runtime(folder: Path) -> Iterator[FakeRuntime]:
    made = FakeRuntime(folder / "cri.sock")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def settings(settings: Settings, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of an agent that measures, with a ``/proc`` of its own."""
    folder = runtime.socket.parent
    proc = folder / "proc"
    for pid, container in ((1, "init.scope"), (11, ID_A), (12, ID_B)):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/{container}\n")
    monkeypatch.setattr(join, "REPORT_AFTER_SECONDS", 0)
    monkeypatch.setattr(card_gauges, "Cgroups", lambda: Cgroups(proc, folder))
    return replace(
        settings,
        cri_socket=runtime.socket,
        measure_use=True,
        use_period=1.0,
        metrics_names=MetricsNames.GPU_MANAGER,
    )


def _gauges(text: str) -> dict[str, float]:
    """The gauges, without their prefix and the labels that never differ."""
    same = r'gpu_turnstile_agent_|namespace="default",|container(_name)?="c0",'
    pairs = (re.sub(same, "", line).rpartition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in pairs if not name.startswith("#")}


def _overuse(admin: ApiClient) -> list[tuple[str, str, int]]:
    return [
        (each["involvedObject"]["name"], each["message"], each["count"])
        for each in events(admin)
        if each["reason"] == "GPUOveruse"
    ]


def test_held_and_used_amounts_are_exported_while_containers_exist(
    settings: Settings,
    admin: ApiClient,
    kubelet: Kubelet,
    runtime: FakeRuntime,
    node: NvmlScript,
) -> None:
    for manifest in (make_manifest("a", (30, 4)), make_manifest("b", (100, 8))):
        admin.create(PODS, manifest)
    runtime.containers = [
        entry(
            {
                "io.kubernetes.container.name": "c0",
                "io.kubernetes.pod.name": name,
                "io.kubernetes.pod.namespace": "default",
                "io.kubernetes.pod.uid": admin.get(f"{PODS}/{name}")["metadata"]["uid"],
            },
            id=container_id,
        )
        for name, container_id in (("a", ID_A), ("b", ID_B))
    ]
    for index in range(2):
        node.card(index, uuid=f"GPU-{index}", gpu=90, used=5 * GIB)
    node.process(0, 11, 4 * GIB, 90)
    with running(settings) as measuring:
        eventually(lambda: ready(measuring), "registered")
        serve(kubelet, admin, "a")
        serve(kubelet, admin, "b")

        def samples(path: str = "/metrics") -> dict[str, float]:
            return _gauges(page(measuring, path)[1])

        block, all_of_b = settings.memory_block, 8 * GIB
        of_a, of_b = '{card="GPU-0",pod="a"}', '{card="GPU-1",pod="b"}'
        expected = {
            f"container_cores_held{of_a}": 30,
            f"container_cores_held{of_b}": 100,
            f"container_memory_held_bytes{of_a}": 4 * block,
            f"container_memory_held_bytes{of_b}": all_of_b,
            f"container_cores_used{of_a}": 90,
            f"container_cores_used{of_b}": 0,
            f"container_memory_used_bytes{of_a}": 4 * GIB,
            f"container_memory_used_bytes{of_b}": 0,
            "overuse_total": 1,
        }
        eventually(lambda: samples().items() >= expected.items(), "held and used amounts")
        assert samples()['card_cores_used{card="GPU-1"}'] == 90
        assert samples()['card_memory_used_bytes{card="GPU-0"}'] == 5 * GIB
        # The page reads its usage table from them.
        cluster = ClusterState(settings.names)
        cards = tuple(Card(f"GPU-{index}", index, "A100", 8 * GIB) for index in range(2))
        cluster.put_node(
            bare_node("n1", encode_inventory(PublishedInventory(block, cards, free=(NOTHING,) * 2)))
        )
        for name in ("a", "b"):
            cluster.put_pod(admin.get(f"{PODS}/{name}"))
        use = read_usage("n1", parse_samples(page(measuring, "/metrics")[1]))
        rows = usage_rows(cluster.report(), {"n1": use}, None, GroupBy.POD)
        assert {(each.pod, each.held, each.used) for each in rows} == {("a", 0.3, 0.9), ("b", 1, 0)}
        held = 4 * block // (1 << 20)
        text = (
            "container c0: uses 90 cores of GPU-0 and holds 30; "
            f"uses 4096 MiB of GPU-0 and holds {held}"
        )
        eventually(lambda: _overuse(admin), "the overuse is an Event")
        as_gpu_manager = {
            'container_gpu_utilization{gpu="gpu0",node="n1",pod_name="a"}': 90,
            'container_request_gpu_utilization{node="n1",pod_name="b",req_of_gpu="total"}': 1,
        }
        eventually(
            lambda: samples("/metric").items() >= as_gpu_manager.items(), "gpu-manager's gauges"
        )
        kubelet.remove_pods(admin.get(f"{PODS}/a"))
        admin.delete(f"{PODS}/a", grace_period_seconds=0)
        eventually(lambda: not [each for each in samples() if 'pod="a"' in each], "its gauges end")
        eventually(
            lambda: not [x for x in samples("/metric") if 'pod_name="a"' in x],
            "gpu-manager's end, too",
        )
        assert samples()[f"container_cores_held{of_b}"] == 100
        assert _overuse(admin) == [("a", text, 1)]


def test_use_is_not_measured_by_default(settings: Settings) -> None:
    plain = replace(settings, measure_use=False, metrics_names=MetricsNames.OWN)
    with running(plain) as silent:
        assert "use" not in {each.name for each in silent.threads}
        assert page(silent, "/metric")[0] == 404
