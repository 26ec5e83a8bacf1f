"""A whole agent in this process, between a fake kubelet and a simulated API server."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import urllib3

from agent.app import serving
from agent.app.container_setup import Upkeep
from agent.app.supervisor import Agent
from agent.cards.inventory import Discovery
from agent.cards.source import StaticSource
from agent.errors import SettingsError
from agent.injection.inject import DriverFiles
from agent.kubelet.api import deviceplugin_pb2 as pb
from agent.kubernetes_api.inventory import InventoryPace
from agent.settings import Settings
from contract.allocation import Allocation, Evidence, decode_allocations
from contract.inventory import decode_inventory
from simulator.api.faults import Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from tests.agent.builders import BLOCK, device_table
from tests.agent.driver.driver_host import DriverHost, expected, tree
from tests.agent.fakes import (
    DEADLINE_S,
    NAMES,
    FakeKubelet,
    eventually,
    make_manifest,
    make_settings,
    plugin,
    write_cards,
)

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def kubelet(folder: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(folder) as running:
        yield running.start()


@pytest.fixture
def settings(kubelet: FakeKubelet, kubeconfig: Path, tmp_path: Path) -> Settings:
    return make_settings(
        tmp_path,
        kubeconfig=kubeconfig,
        plugin_dir=kubelet.plugin_dir,
        pod_resources_socket=kubelet.pod_resources,
        cards=write_cards(tmp_path / "cards.yaml"),
    )


@contextmanager
def running(settings: Settings, **parts: Any) -> Iterator[Agent]:
    """Run an agent, and end it within seconds."""
    agent = Agent(settings, **parts)
    agent.start()
    try:
        yield agent
    finally:
        began = time.monotonic()
        agent.stop()
        assert time.monotonic() - began < 4
        assert not any(thread.is_alive() for thread in agent.threads)


def page(agent: Agent, path: str) -> tuple[int, str]:
    with urllib3.PoolManager(retries=False, timeout=10) as pool:
        answer = pool.request("GET", f"http://127.0.0.1:{agent.http_port}{path}")
        return answer.status, answer.data.decode()


def ready(agent: Agent) -> bool:
    return page(agent, "/readyz") == (200, "ok\n")


def allocate(kubelet: FakeKubelet, pod: str, container: str, cores: int, memory: int) -> list[str]:
    """Do what a kubelet does for one container; gives its device nodes."""
    kubelet.pods.setdefault(pod, {}).setdefault(container, [])
    nodes: list[str] = []
    for stem, resource, size in (
        ("vmemory", NAMES.memory, memory),
        ("vcore", NAMES.core, cores),
    ):
        with plugin(kubelet.path_of(stem)) as stub:
            offered = next(iter(stub.ListAndWatch(pb.Empty(), timeout=20))).devices
            taken = {
                device_id
                for containers in kubelet.pods.values()
                for devices in containers.values()
                for kind, device_ids in devices
                for device_id in device_ids
                if kind == resource
            }
            chosen = stub.GetPreferredAllocation(
                pb.PreferredAllocationRequest(
                    container_requests=[
                        pb.ContainerPreferredAllocationRequest(
                            available_deviceIDs=[
                                each.ID for each in offered if each.ID not in taken
                            ],
                            allocation_size=size,
                        )
                    ]
                ),
                timeout=20,
            ).container_responses[0]
            answer = stub.Allocate(
                pb.AllocateRequest(
                    container_requests=[pb.ContainerAllocateRequest(devices_ids=chosen.deviceIDs)]
                ),
                timeout=20,
            ).container_responses[0]
            nodes += [each.host_path for each in answer.devices]
            kubelet.pods[pod][container].append((resource, list(chosen.deviceIDs)))
            stub.PreStartContainer(
                pb.PreStartContainerRequest(devices_ids=chosen.deviceIDs), timeout=20
            )
    return nodes


def annotated(admin: ApiClient, pod: str) -> dict[str, Allocation]:
    annotations = admin.get(f"{PODS}/{pod}")["metadata"].get("annotations", {})
    return decode_allocations(annotations.get(NAMES.gpu_allocation, "{}"))


def test_nothing_is_given_out_before_the_hosts_driver_files_are_laid_out(
    settings: Settings, tmp_path: Path
) -> None:
    host = DriverHost(tmp_path / "host")
    settings = replace(
        settings,
        driver_dir=DriverFiles("auto"),
        host_root=host.root,
        state_dir=tmp_path / "state",
    )
    with running(settings) as agent:
        eventually(lambda: "/etc/ld.so.cache" in page(agent, "/readyz")[1], "it says why not")
        assert "driver_files_problem 1.0" in page(agent, "/metrics")[1]
    host.install("550.54.15")
    with running(settings) as agent:
        eventually(lambda: ready(agent), "it serves")
        assert settings.driver is not None
        assert tree(Path(settings.driver.host)) == expected("550.54.15")


def test_a_pod_is_served_proven_and_its_allocation_written(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: FakeKubelet,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent.app.supervisor")
    server.apply(make_manifest("a", (30, 8)))
    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")
        assert page(agent, "/healthz") == (200, "ok\n")
        before = len(server.requests)
        nodes = allocate(kubelet, "a", "c0", 30, 8)
        eventually(lambda: len(server.requests) > before, "the patch")
        asked = {each.verb for each in server.requests[before:]}
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
        written = 'patches_total{result="written"} 1.0'
        eventually(lambda: written in page(agent, "/metrics")[1], "it is counted")
        eventually(
            lambda: "agent_registered 1.0\n" in page(agent, "/metrics")[1], "it is registered"
        )
        _, metrics = page(agent, "/metrics")
    assert asked == {"patch"}  # no request is made on the path of a known pod
    (shown,) = (vars(each) for each in caplog.records if each.getMessage() == "cards")
    assert (shown["cards"], shown["memory_block"]) == ({"GPU-0": "Fake", "GPU-1": "Fake"}, BLOCK)
    assert nodes[0] == "/dev/null"
    assert annotated(admin, "a") == {"c0": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    annotations = admin.get(f"{PODS}/a")["metadata"]["annotations"]
    assert annotations[NAMES.gpu_assigned] == "true"
    assert annotations[NAMES.predicate_gpu_idx(0)] == "0"
    for line in (
        'decisions_total{call="allocate",evidence="ticket"} 2.0',
        'decisions_total{call="prestart",evidence="record"} 2.0',
        written,
        "patches_pending 0.0",
        'container_cores_held{card="GPU-0",container="c0",namespace="default",pod="a"} 30.0',
        'card_cores_free{card="GPU-0"} 70.0',
        'card_cores_free{card="GPU-1"} 100.0',
    ):
        assert f"gpu_turnstile_agent_{line}\n" in metrics


def test_the_kubelet_is_let_in_before_the_api_server_has_answered(
    settings: Settings, server: ApiServer, kubelet: FakeKubelet
) -> None:
    """Each GPU pod that it admits without a plugin fails for good (fact K19)."""
    server.set_outage(Outage.REFUSED)
    with running(settings) as agent:
        eventually(lambda: len(kubelet.registered) == 2, "registered")
        eventually(
            lambda: page(agent, "/readyz") == (503, "the node's pods are not known yet\n"),
            "it says what it waits for",
        )


def test_a_call_that_comes_before_the_pods_are_known_waits_for_them(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: FakeKubelet
) -> None:
    """The pod's wish cannot be seen in ``List``: whoever answers at once overlooks it."""
    server.apply(make_manifest("a", (30, 8), annotations={NAMES.use_gpu_uuid: "GPU-1"}))
    server.set_outage(Outage.UNAVAILABLE)
    with running(settings) as agent:
        eventually(lambda: len(kubelet.registered) == 2, "registered")
        given: list[list[str]] = []
        kubelet_asks = threading.Thread(
            target=lambda: given.append(allocate(kubelet, "a", "c0", 30, 8)), daemon=True
        )
        kubelet_asks.start()
        kubelet_asks.join(0.3)
        assert not given
        server.set_outage(Outage.NONE)
        kubelet_asks.join(DEADLINE_S)
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
        eventually(lambda: ready(agent), "ready")
    assert len(given) == 1
    assert annotated(admin, "a")["c0"] == Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)


def test_what_is_free_is_not_told_before_it_is_known(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: FakeKubelet
) -> None:
    """An inventory of a ledger that is not read yet would show every card free."""
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    pace = InventoryPace(write=0.01, look=0.01, settle=0.01)
    kubelet.hang.clear()
    with running(settings, inventory_pace=pace) as agent:
        waits = (503, "the node's pods are not known yet\n")
        eventually(lambda: page(agent, "/readyz") == waits, "it waits for List")
        time.sleep(0.2)  # in which it would have written many times over
        assert not admin.get("/api/v1/nodes/n1")["metadata"].get("annotations")
        kubelet.hang.set()
        eventually(
            lambda: admin.get("/api/v1/nodes/n1")["metadata"].get("annotations"), "the inventory"
        )


def test_calls_are_answered_though_loading_fails(
    settings: Settings, server: ApiServer, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of the kubelet has no deadline, and blocks everything else that it does."""
    server.apply(make_manifest("a", (30, 8)))
    monkeypatch.setattr(Upkeep, "tick", _fail)
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    with running(settings) as agent:
        eventually(lambda: len(kubelet.registered) == 2, "registered")
        assert allocate(kubelet, "a", "c0", 30, 8)
        assert page(agent, "/healthz") == (503, "a thread of the agent has died\n")


def _fail(_self: object) -> None:
    raise RuntimeError("a disk that nobody has thought of")


@pytest.mark.parametrize(
    ("cards", "memory", "block", "message"),
    [
        (0, "8Gi", BLOCK, "cards: .*: cards: Required value: a list of at least one card"),
        (8, "141Gi", 4 << 20, "memory-block: Invalid value: 4Mi: .*use [0-9]+Mi or more"),
        (
            2,
            "8Gi",
            9 << 30,
            rf"memory-block: Invalid value: {9 << 30}: larger than card GPU-0 \({8 << 30} bytes\)",
        ),
    ],
)
def test_cards_and_blocks_that_cannot_be_served_stop_it_at_once(
    settings: Settings, tmp_path: Path, *, cards: int, memory: str, block: int, message: str
) -> None:
    path = write_cards(tmp_path / "others.yaml", cards, memory)
    with pytest.raises(SettingsError, match=rf"\A{message}\Z"):
        Agent(replace(settings, cards=path, memory_block=block))


class Slow(StaticSource):
    """Cards of which nothing is known before *go_on* is set."""

    def __init__(self) -> None:
        super().__init__(device_table(2).inventory)
        self.go_on = threading.Event()

    def discover(self) -> Discovery:
        assert self.go_on.wait(20)
        return super().discover()


def test_while_the_cards_are_looked_at_it_lives_and_says_so(settings: Settings) -> None:
    source = Slow()
    with running(settings, source=source) as agent:
        assert page(agent, "/healthz") == (200, "ok\n")
        assert page(agent, "/readyz") == (503, "the cards are not known yet\n")
        assert "gpu_turnstile_agent_cards_look_age_seconds" in page(agent, "/metrics")[1]
        source.go_on.set()
        eventually(lambda: ready(agent), "registered")
        assert page(agent, "/healthz") == (200, "ok\n")


# --- the node's inventory ----------------------------------------------------------------


def test_the_node_shows_its_cards_and_what_is_free(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: FakeKubelet
) -> None:
    server.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
        make_manifest("a", (30, 8)),
    )

    def shown() -> list[tuple[str, str, int, int]]:
        annotations = admin.get("/api/v1/nodes/n1")["metadata"].get("annotations", {})
        if NAMES.gpu_cards not in annotations:
            return []
        cards = decode_inventory(annotations[NAMES.gpu_cards]).cards
        return [(each.uuid, each.reason, each.free_cores, each.free_blocks) for each in cards]

    pace = InventoryPace(write=0.01, look=30.0, settle=0.01)
    with running(settings, inventory_pace=pace) as agent:
        eventually(lambda: ready(agent), "registered")
        free = [("GPU-0", "", 100, 32), ("GPU-1", "", 100, 32)]
        eventually(lambda: shown() == free, "all is free")
        allocate(kubelet, "a", "c0", 30, 8)
        less = [("GPU-0", "", 70, 24), ("GPU-1", "", 100, 32)]
        eventually(lambda: shown() == less, "less is free")
        assert 'inventory_writes_total{result="written"}' in page(agent, "/metrics")[1]
        # An old kubelet lists it on, without devices (K8), and no call comes any more.
        kubelet.pods["a"]["c0"] = []
        admin.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
        eventually(lambda: shown() == free, "all is free again", within=10.0)


# --- what a pod's author is told ------------------------------------------------------

EVENTS = "/api/v1/namespaces/default/events"


def _events(admin: ApiClient) -> list[dict[str, Any]]:
    return list(admin.get(EVENTS)["items"])


def test_a_refused_pod_and_a_vetoed_start_are_told_by_events(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: FakeKubelet
) -> None:
    server.apply(make_manifest("a", (30, 999)), make_manifest("b", (30, 8)))
    cores = [f"GPU-0::{place}" for place in range(20)]
    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")
        with pytest.raises(grpc.RpcError) as refused:
            allocate(kubelet, "a", "c0", 30, 999)
        eventually(lambda: _events(admin), "it is told")
        eventually(
            lambda: 'events_total{result="written"}' in page(agent, "/metrics")[1], "counted"
        )
        kubelet.pods["b"] = {"c0": [(NAMES.core, cores)]}
        with plugin(kubelet.path_of("vcore")) as stub, pytest.raises(grpc.RpcError):
            stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=cores), timeout=20)
        eventually(lambda: len(_events(admin)) == 2, "it is told")
    event, veto = sorted(_events(admin), key=lambda each: str(each["reason"]))
    assert (veto["reason"], veto["message"]) == (
        "GPUStartVetoed",
        "container c0: 20 places of core, but the container asks for 30",
    )
    reason = "no card fits 30 cores and 999 memory blocks: 0 of 1 cards found; "
    assert reason in str(refused.value.details())
    assert event["message"].startswith(f"container c0: {reason}")
    assert (event["type"], event["reason"]) == ("Warning", "GPURefused")
    assert event["source"] == {"component": "gpu-turnstile", "host": "n1"}
    pod = admin.get(f"{PODS}/a")
    assert event["involvedObject"]["name"] == "a"
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]


# --- pods that nothing happens to any more --------------------------------------------


def test_a_record_that_a_killed_agent_owes_is_written_though_nobody_calls(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: FakeKubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kubelet's record could not be had when this agent came up and registered."""
    monkeypatch.setattr(serving, "_REFRESH_SECONDS", 0.05)
    server.apply(make_manifest("a", (30, 8)))
    kubelet.pods["a"] = {
        "c0": [
            (NAMES.core, [f"GPU-1::{place}" for place in range(30)]),
            (NAMES.memory, [f"GPU-1::{place}" for place in range(8)]),
        ]
    }
    kubelet.stop()
    kubelet.socket.unlink(missing_ok=True)
    with running(settings) as agent:
        assert page(agent, "/healthz") == (200, "ok\n")
        assert page(agent, "/readyz") == (503, "not registered\n")
        kubelet.start_registration()
        eventually(lambda: ready(agent), "registered")
        assert not annotated(admin, "a")
        kubelet.start_pod_resources()
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
    assert annotated(admin, "a")["c0"] == Allocation(("GPU-1",), 30, 8, Evidence.RECORD)


# --- the end --------------------------------------------------------------------------
