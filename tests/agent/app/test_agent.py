"""A whole agent in this process, between a simulated kubelet and API server."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.app import refresher
from agent.app.agent import Agent
from agent.app.container_setup import EnforcerRunner
from agent.app.plugin_door import CURRENT_POD_FILE
from agent.errors import SettingsError
from agent.injection.inject import DriverFiles, Injection
from agent.kubernetes_api.inventory import InventoryPace
from agent.settings import Settings
from contract.allocation import Allocation, Evidence, decode_allocations
from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from simulator.kubelet.checkpoint import CheckpointStore
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import PluginCallFailed, TurnedAway
from simulator.kubelet.node import Kubelet
from simulator.kubelet.numa import NO_NODE, DeviceAllocation
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.settings import HookPoint
from simulator.kubelet.state import KubeletCheckpoint
from tests.agent.a_kubelet import TurnsAway, client_of, make_kubelet, registered, serve
from tests.agent.app.whole import PODS, page, ready, running
from tests.agent.builders import BLOCK
from tests.agent.driver.driver_host import DriverHost, expected, tree
from tests.agent.fakes import (
    DEADLINE_S,
    NAMES,
    eventually,
    make_manifest,
    make_settings,
    write_cards,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait longer for List and the API: an agent that is starved guesses."""
    monkeypatch.setattr("agent.allocator.observer.LIST_WITHIN", DEADLINE_S)
    monkeypatch.setattr("agent.kubernetes_api.client._GET_SECONDS", DEADLINE_S)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    made = make_kubelet(folder)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def settings(kubelet: Kubelet, kubeconfig: Path, tmp_path: Path) -> Settings:
    return make_settings(
        tmp_path,
        kubeconfig=kubeconfig,
        kubelet_dir=kubelet.settings.plugin_dir,
        plugin_dir=kubelet.settings.plugin_dir,
        pod_resources_socket=kubelet.settings.pod_resources_socket,
        cards=write_cards(tmp_path / "cards.yaml"),
    )


def annotated(admin: ApiClient, pod: str) -> dict[str, Allocation]:
    annotations = admin.get(f"{PODS}/{pod}")["metadata"].get("annotations", {})
    return decode_allocations(annotations.get(NAMES.gpu_allocation, "{}"))


def test_nothing_is_given_out_before_the_hosts_driver_files_are_laid_out(
    settings: Settings, kubelet: Kubelet, tmp_path: Path
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
        time.sleep(0.3)  # in which it would have registered
    assert not registered(kubelet)
    host.install("550.54.15")
    with running(settings) as agent:
        eventually(lambda: ready(agent), "it serves")
        assert settings.driver is not None
        writable = 'gpu_turnstile_agent_folder_writable{{folder="{}"}} 1.0'
        shown = {*page(agent, "/metrics")[1].splitlines()}
        assert {writable.format(each) for each in ("plugin-dir", "state-dir")} <= shown
        assert tree(Path(settings.driver.host)) == expected("550.54.15")


def test_a_pod_is_served_proven_and_its_allocation_written(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: Kubelet,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent.app")
    server.apply(make_manifest("a", (30, 8)))
    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")
        assert page(agent, "/healthz") == (200, "ok\n")
        before = len(server.requests)
        nodes = serve(kubelet, admin, "a")
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
        lines = (
            'decisions_total{call="allocate",evidence="ticket"} 2.0',
            'decisions_total{call="prestart",evidence="record"} 2.0',
            'patches_total{result="written"} 1.0',
            "registered 1.0",
            "patches_pending 0.0",
            'container_cores_held{card="GPU-0",container="c0",namespace="default",pod="a"} 30.0',
            'card_cores_free{card="GPU-0"} 70.0',
            'card_cores_free{card="GPU-1"} 100.0',
        )
        expected = {f"gpu_turnstile_agent_{line}" for line in lines}
        eventually(lambda: expected <= {*page(agent, "/metrics")[1].splitlines()}, "it is counted")
    asked = server.requests[before:]
    # A pod that has come is read once: that the API shows it before and after is the proof.
    verbs = {each.verb for each in asked if each.user_agent == "gpu-turnstile-agent"}
    assert verbs == {"get", "patch"}
    (shown,) = (vars(each) for each in caplog.records if each.getMessage() == "cards")
    assert (shown["cards"], shown["memory_block"]) == ({"GPU-0": "Fake", "GPU-1": "Fake"}, BLOCK)
    assert nodes[0] == "/dev/null"
    assert annotated(admin, "a") == {"c0": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    annotations = admin.get(f"{PODS}/a")["metadata"]["annotations"]
    assert annotations[NAMES.gpu_assigned] == "true"
    assert annotations[NAMES.predicate_gpu_idx(0)] == "0"


def test_cards_that_nvidias_device_plugin_serves_as_well_are_an_event_of_the_node(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    server.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": settings.node_name},
            "status": {"allocatable": {"nvidia.com/gpu": "2"}},
        }
    )
    with running(settings) as agent:
        eventually(
            lambda: "cards_served_twice 2.0" in page(agent, "/metrics")[1], "a gauge says so"
        )

        def reasons() -> list[str]:
            events = admin.get("/api/v1/namespaces/default/events")["items"]
            return [each["reason"] for each in events]

        eventually(lambda: reasons() == ["GPUsServedTwice"], "an Event says so")


def test_a_cordoned_card_gets_no_new_container(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: Kubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.kubernetes_api.node._PERIOD", 0.1)
    node, cordon = f"/api/v1/nodes/{settings.node_name}", {NAMES.gpu_cordoned: "GPU-0"}
    metadata = {"name": settings.node_name, "annotations": cordon}
    server.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": metadata}, make_manifest("a", (30, 8))
    )
    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")

        def cards_annotation() -> str:
            annotations = admin.get(node)["metadata"].get("annotations") or {}
            return str(annotations.get(NAMES.gpu_cards))

        eventually(lambda: '"reason":"cordoned"' in cards_annotation(), "the node shows it")
        serve(kubelet, admin, "a")
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
        assert annotated(admin, "a")["c0"].cards == ("GPU-1",)
        admin.patch(node, {"metadata": {"annotations": {NAMES.gpu_cordoned: None}}})
        eventually(lambda: "cordoned" not in cards_annotation(), "it may be had again")


def test_pods_whose_card_is_gone_at_the_agents_start_are_told_by_events(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet, tmp_path: Path
) -> None:
    """Of one pod the only card, of another one of two; a third has kept its own."""
    wishes = {"gone": "GPU-0", "kept": "GPU-1"}
    for name, uuid in wishes.items():
        server.apply(make_manifest(name, (30, 8), annotations={NAMES.use_gpu_uuid: uuid}))
    server.apply(make_manifest("both", (200, 64), annotations={NAMES.use_gpu_uuid: "GPU-2,GPU-3"}))
    cards = write_cards(tmp_path / "cards.yaml", 4)
    with running(replace(settings, cards=cards)) as agent:
        eventually(lambda: ready(agent), "registered")
        for name in (*wishes, "both"):
            serve(kubelet, admin, name)
            eventually(partial(annotated, admin, name), "the allocation is written")
    assert _events(admin) == []
    listed = cards.read_text()
    cards.write_text(listed.replace("GPU-0", "GPU-new").replace("GPU-2", "GPU-other"))
    with running(replace(settings, cards=cards)) as agent:
        eventually(lambda: len(_events(admin)) == 4, "they are told")
        metrics = page(agent, "/metrics")[1]
    assert {each["reason"] for each in _events(admin)} == {"GPUMissing"}
    text = "container c0 holds a card that this node does not have any more"
    assert {(each["involvedObject"]["name"], each["message"]) for each in _events(admin)} == {
        ("gone", f"{text} (GPU-0), and cannot compute on it: delete the pod"),
        ("both", f"{text} (GPU-2), and cannot compute on it: delete the pod"),
        ("n1", "card GPU-0 is gone or cannot be served; held by default/gone"),
        ("n1", "card GPU-2 is gone or cannot be served; held by default/both"),
    }
    held = re.findall(r'container_cores_held{card="([^"]+)".*pod="(\w+)"} (\S+)', metrics)
    assert sorted(held) == [
        ("GPU-0", "gone", "30.0"),
        ("GPU-1", "kept", "30.0"),
        ("GPU-2", "both", "100.0"),
        ("GPU-3", "both", "100.0"),
    ]
    assert 'card_cores_held{card="GPU-new"} 0.0' in metrics


def test_an_agent_without_permissions_says_which_it_lacks(
    settings: Settings, server: ApiServer, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves pods, and writes nothing of it anywhere."""
    monkeypatch.setattr(refresher, "_SYNC_SECONDS", 0.1)
    user = "system:serviceaccount:gpu-turnstile-node:gpu-turnstile-agent"
    server.fail(Fault(403, message=f'User "{user}" cannot list resource "pods" at all'))

    def failing(agent: Agent) -> set[str]:
        pattern = r'requests_failing{reason="forbidden",resource="(\w+)",verb="(\w+)"} 1.0'
        found = re.findall(pattern, page(agent, "/metrics")[1])
        return {f"{verb} {resource}" for resource, verb in found}

    with running(settings) as agent:
        eventually(lambda: ready(agent), "it is registered")
        expected = {"list pods", "get nodes", "patch nodes"}
        eventually(lambda: failing(agent) == expected, "each is shown")
        server.restore()
        eventually(lambda: "list pods" not in failing(agent), "it may list pods again")


def test_its_metrics_say_what_it_does(settings: Settings) -> None:
    with running(replace(settings, inject=Injection.ENVVAR)) as agent:
        found = re.search(r"gpu_turnstile_agent_info{(.*)} 1.0", page(agent, "/metrics")[1])
    assert found is not None
    labels = f'enforcement="none",inject="envvar",version="{version("gpu-turnstile")}"'
    assert found[1] == labels


@pytest.mark.usefixtures("kubelet")
def test_an_edited_cards_file_that_cannot_be_used_shows_in_a_gauge_and_the_node_stays_served(
    settings: Settings,
) -> None:
    """The last one applies: without the gauge only a log line says that the edit does not."""
    path = settings.cards
    assert path is not None
    before = path.read_text()
    with running(settings) as agent:

        def shows(value: str) -> bool:
            return f"cards_file_problem {value}\n" in page(agent, "/metrics")[1] and ready(agent)

        eventually(lambda: shows("0.0"), "the file is used")
        path.write_text("cards: [")
        eventually(lambda: shows("1.0"), "the edited file is not used")
        path.write_text(before)
        eventually(lambda: shows("0.0"), "the file is used again")


def test_it_registers_once_the_nodes_pods_are_known(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    """The pod's wish cannot be seen in ``List``: whoever answers earlier overlooks it."""
    server.apply(make_manifest("a", (30, 8), annotations={NAMES.use_gpu_uuid: "GPU-1"}))
    server.set_outage(Outage.UNAVAILABLE)
    with running(settings) as agent:
        waits = (503, "the node's pods are not known yet\n")
        eventually(lambda: page(agent, "/readyz") == waits, "it says what it waits for")
        assert not registered(kubelet)
        server.set_outage(Outage.NONE)
        eventually(lambda: ready(agent), "registered")
        serve(kubelet, admin, "a")
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
    assert annotated(admin, "a")["c0"] == Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)


def test_another_kubelet_is_noticed_though_it_is_not_where_the_agent_has_registered(
    settings: Settings, folder: Path, tmp_path: Path, server: ApiServer, admin: ApiClient
) -> None:
    """It knows of no answer that its predecessor got: what was reserved for that one is not."""
    own = tmp_path / "kubelet.sock"
    own.touch()

    def seem_another(moment: HookPoint) -> None:
        if (moment.when, moment.what) == ("before", "Allocate"):
            own.chmod(0o777 if own.stat().st_mode & 1 == 0 else 0o600)

    kubelet = make_kubelet(folder, hook=seem_another)
    kubelet.start()
    server.apply(make_manifest("a", (30, 8)))
    with running(replace(settings, kubelet_dir=tmp_path)) as agent:
        eventually(lambda: ready(agent), "registered")
        serve(kubelet, admin, "a")
        _, metrics = page(agent, "/metrics")
    kubelet.stop()
    assert 'decisions_total{call="allocate",evidence="witness"} 2.0' in metrics


def test_the_next_agent_is_ready_beside_the_old_one_and_works_once_that_has_ended(
    settings: Settings, server: ApiServer, kubelet: Kubelet
) -> None:
    with running(settings) as first:
        eventually(lambda: ready(first), "the first is registered")
        before = len(registered(kubelet))
        with running(settings) as second:
            eventually(lambda: page(second, "/readyz") == (200, "ok\n"), "the next is ready")
            assert not second.registered
            assert len(registered(kubelet)) == before
            first.stop()
            eventually(lambda: second.registered, "the next is registered")


def test_free_amounts_are_not_published_before_they_are_known(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    """An inventory of a record that is not read yet would show every card free."""
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    pace = InventoryPace(write=0.01, check=0.01, freed=0.01)
    released = threading.Event()
    kubelet.settings.misbehavior.at["List"] = lambda _resource: released.wait(DEADLINE_S)
    with running(settings, inventory_pace=pace) as agent:
        waits = (503, "the node's pods are not known yet\n")
        eventually(lambda: page(agent, "/readyz") == waits, "it waits for List")
        time.sleep(0.2)  # in which it would have written many times over
        assert not admin.get("/api/v1/nodes/n1")["metadata"].get("annotations")
        released.set()
        eventually(
            lambda: admin.get("/api/v1/nodes/n1")["metadata"].get("annotations"), "the inventory"
        )


def test_an_agent_that_cannot_load_never_registers_and_is_to_be_restarted(
    settings: Settings, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnforcerRunner, "tick", _fail)
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    with running(settings) as agent:
        dead = (503, "a thread of the agent has ended unexpectedly\n")
        eventually(lambda: page(agent, "/healthz") == dead, "it says so")
        assert not registered(kubelet)


def _fail(_self: object) -> None:
    raise RuntimeError("a disk that nobody has thought of")


def test_a_block_that_cannot_be_served_stops_it_at_once(settings: Settings, tmp_path: Path) -> None:
    path = write_cards(tmp_path / "others.yaml", 8, "141Gi")
    message = r"\Amemory-block: Invalid value: 4Mi: .*use [0-9]+Mi or more\Z"
    with pytest.raises(SettingsError, match=message):
        Agent(replace(settings, cards=path, memory_block=4 << 20))


def _events(admin: ApiClient) -> list[dict[str, Any]]:
    return list(admin.get("/api/v1/namespaces/default/events")["items"])


def test_a_refused_pod_and_a_vetoed_start_create_events(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    server.apply(make_manifest("a", (30, 999)), make_manifest("b", (30, 8)))
    too_large, mistaken = (admin.get(f"{PODS}/{name}") for name in ("a", "b"))
    uid, uid_b = (each["metadata"]["uid"] for each in (too_large, mistaken))
    cores = tuple(f"GPU-0::{number}" for number in range(20))
    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")
        eventually(lambda: all(kubelet.capacity()[1].values()), "the kubelet has the lists")
        kubelet.add_pods(too_large)
        refused = eventually(lambda: kubelet.status(uid), "it is refused")
        eventually(lambda: _events(admin), "it is told")
        eventually(
            lambda: 'events_total{result="written"}' in page(agent, "/metrics")[1], "counted"
        )
        held: PodHoldings = {
            "c0": {NAMES.core: DeviceAllocation(cores, PluginResponse(), {NO_NODE: cores})}
        }
        CheckpointStore(kubelet.settings.plugin_dir).save(KubeletCheckpoint({uid_b: held}, {}))
        with pytest.raises(PluginCallFailed):
            client_of(kubelet, NAMES.core).pre_start(cores)
        eventually(lambda: len(_events(admin)) == 2, "it is told")
    event, veto = sorted(_events(admin), key=lambda each: str(each["reason"]))
    assert (veto["reason"], veto["message"]) == (
        "GPUStartVetoed",
        "container c0: 20 cores, but the container requests 30",
    )
    reason = "no card fits 30 cores and 999 memory blocks: "
    assert reason in refused["message"]
    assert event["message"].startswith(f"container c0: {reason}")
    assert event["reason"] == "GPURefused"
    assert event["involvedObject"]["uid"] == uid


def test_an_allocation_left_unwritten_by_a_killed_agent_is_written_without_a_call(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: Kubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kubelet's record could not be had when this agent came up and registered."""
    monkeypatch.setattr(refresher, "_REFRESH_SECONDS", 0.05)
    at = kubelet.settings.misbehavior.at
    server.apply(make_manifest("a", (30, 8), annotations={NAMES.use_gpu_uuid: "GPU-1"}))
    server.fail(Fault(503), f"patch {PODS}/a")
    with running(settings) as killed:
        eventually(lambda: ready(killed), "registered")
        serve(kubelet, admin, "a")
    kubelet.stop()
    server.restore()
    (settings.plugin_dir / CURRENT_POD_FILE).unlink()
    at["List"] = TurnsAway(TurnedAway("not yet", grpc.StatusCode.UNAVAILABLE))
    with running(
        replace(settings, kubelet_dir=kubelet.settings.root_dir)
    ) as agent:  # no checkpoint
        assert page(agent, "/healthz") == (200, "ok\n")
        waits = (503, "not registered\n")
        eventually(lambda: page(agent, "/readyz") == waits, "it waits for the kubelet")
        kubelet.start()
        kubelet.add_pods(admin.get(f"{PODS}/a"))  # it runs: nobody is asked for it again
        eventually(lambda: ready(agent), "registered")
        assert not annotated(admin, "a")
        del at["List"]
        eventually(lambda: annotated(admin, "a"), "the allocation is written")
    assert annotated(admin, "a")["c0"] == Allocation(("GPU-1",), 30, 8, Evidence.RECORD)
