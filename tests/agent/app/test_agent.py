"""A whole agent in this process, between a simulated kubelet and API server."""

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from agent.app.agent import Agent
from agent.app.container_setup import EnforcerRunner
from agent.app.refresher import RefreshPace
from agent.errors import SettingsError, Unavailable
from agent.injection.inject import DriverFiles, Injection
from agent.kubernetes_api.inventory import InventoryPace
from agent.settings import Settings
from contract.allocation import Allocation, Evidence, decode_allocations
from contract.inventory import PublishedInventory
from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from simulator.kubelet.checkpoint import CheckpointStore
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import PluginCallFailed
from simulator.kubelet.node import Kubelet
from simulator.kubelet.numa import NO_NODE, DeviceAllocation
from simulator.kubelet.podresources import PodResourcesServer
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.settings import HookPoint
from simulator.kubelet.sockets import Misbehavior
from simulator.kubelet.state import KubeletCheckpoint
from tests.agent.a_kubelet import client_of, has_devices, make_kubelet, registered, serve
from tests.agent.app.whole import FAST, PODS, events, metrics, page, ready, running
from tests.agent.builders import BLOCK, raising
from tests.agent.driver.driver_host import DriverHost, expected, tree
from tests.agent.fakes import DEADLINE_S, NAMES, eventually, make_manifest, write_cards

NODE = "/api/v1/nodes/n1"
PODS_UNKNOWN = 503, "the node's pods are not known yet\n"


def annotated(admin: ApiClient, pod: str) -> dict[str, Allocation]:
    annotations = admin.get(f"{PODS}/{pod}")["metadata"].get("annotations", {})
    return decode_allocations(annotations.get(NAMES.gpu_allocation, "{}"))


def served(kubelet: Kubelet, admin: ApiClient, pod: str) -> Allocation:
    serve(kubelet, admin, pod)
    found: dict[str, Allocation] = eventually(partial(annotated, admin, pod), "it is written")
    return found["c0"]


def shows(agent: Agent, samples: set[str]) -> bool:
    return samples <= metrics(agent) and ready(agent)


def test_it_registers_once_the_hosts_driver_files_are_laid_out(
    settings: Settings, kubelet: Kubelet, tmp_path: Path
) -> None:
    host, state = DriverHost(tmp_path / "host"), tmp_path / "state"
    settings = replace(
        settings, driver_dir=DriverFiles("auto"), host_root=host.root, state_dir=state
    )
    assert settings.driver is not None
    folder = Path(settings.driver.host)
    at_registration: list[bool] = []
    kubelet.settings.misbehavior.at["Register"] = lambda _resource: at_registration.append(
        tree(folder) == expected("550.54.15")
    )
    with running(settings) as agent:
        eventually(lambda: "/etc/ld.so.cache" in page(agent, "/readyz")[1], "it reports why not")
        assert "driver_files_problem 1.0" in metrics(agent)
        host.install("550.54.15")
        eventually(lambda: ready(agent), "it serves")
        writable = {
            f'folder_writable{{folder="{flag}",path="{path}",reason=""}} 1.0'
            for flag, path in settings.written_folders.items()
        }
        assert writable <= metrics(agent)
    assert at_registration == [True, True]


def test_a_pod_is_served_proven_and_its_allocation_written(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: Kubelet,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "agent.app")
    server.apply(make_manifest("a", (30, 8)))
    with running(settings, pace=replace(FAST, node=DEADLINE_S)) as agent:
        eventually(lambda: ready(agent), "registered")
        assert page(agent, "/healthz") == (200, "ok\n")
        before = len(server.requests)
        nodes = serve(kubelet, admin, "a")
        labels = (
            f'enforcement="none",inject="{settings.inject}",version="{version("gpu-turnstile")}"'
        )
        samples = {
            'decisions_total{call="allocate",evidence="ticket"} 2.0',
            'decisions_total{call="prestart",evidence="record"} 2.0',
            'patches_total{result="written"} 1.0',
            "registered 1.0",
            "patches_pending 0.0",
            'container_cores_held{card="GPU-0",container="c0",namespace="default",pod="a"} 30.0',
            'card_cores_free{card="GPU-0"} 70.0',
            'card_cores_free{card="GPU-1"} 100.0',
            f"info{{{labels}}} 1.0",
        }
        eventually(lambda: samples <= metrics(agent), "it is counted")
    # A new pod is read once: that the API shows it before and after is the proof.
    requests = [each for each in server.requests[before:] if "gpu-turnstile" in each.user_agent]
    assert {each.verb for each in requests} == {"get", "patch"}
    (logged,) = (vars(each) for each in caplog.records if each.getMessage() == "cards")
    assert (logged["cards"], logged["memory_block"]) == ({"GPU-0": "Fake", "GPU-1": "Fake"}, BLOCK)
    assert nodes[0] == "/dev/null"
    assert annotated(admin, "a") == {"c0": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    annotations = admin.get(f"{PODS}/a")["metadata"]["annotations"]
    assert annotations[NAMES.gpu_assigned] == "true"
    assert annotations[NAMES.predicate_gpu_idx(0)] == "0"


def test_cordons_and_other_device_plugins_are_read_from_the_node(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    metadata = {"name": "n1", "annotations": {NAMES.gpu_cordoned: "gpu-0,A;B"}}
    status = {"allocatable": {"nvidia.com/gpu": "2"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
    devices = {"driver": "gpu.nvidia.com", "nodeName": "n1", "devices": [{"name": "gpu-0"}]}
    dra = {"kind": "ResourceSlice", "metadata": {"name": "n1-gpu"}, "spec": devices}
    server.apply(node, {"apiVersion": "resource.k8s.io/v1", **dra}, make_manifest("a", (30, 8)))

    def inventory() -> str:
        return str(admin.get(NODE)["metadata"]["annotations"].get(NAMES.gpu_cards))

    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")
        eventually(lambda: '"reason":"cordoned"' in inventory(), "the inventory has the cordon")
        assert served(kubelet, admin, "a").cards == ("GPU-1",)
        admin.patch(NODE, {"metadata": {"annotations": {NAMES.gpu_cordoned: None}}})
        eventually(lambda: "cordoned" not in inventory(), "the card may be allocated again")
        eventually(lambda: "cards_served_twice 3.0" in metrics(agent), "a gauge shows it")
        reasons = {"GPUsServedTwice", "GPUCordonUnknown"}
        eventually(lambda: {each["reason"] for each in events(admin)} == reasons, "an Event")


def test_a_host_without_a_usable_cdi_spec_is_reported(
    settings: Settings, server: ApiServer, admin: ApiClient, tmp_path: Path
) -> None:
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    by_name = replace(settings, inject=Injection.CDI, cdi_dir=tmp_path / "cdi")
    reason = "no spec of kind nvidia.com/gpu"
    with running(by_name) as agent:
        eventually(
            lambda: f'cdi_specs_unused{{reason="{reason}"}} 1.0' in metrics(agent), "a gauge"
        )
        eventually(
            lambda: (
                {each["reason"]: each["message"] for each in events(admin)}
                == {
                    "GPUHostSpecsUnused": "containers get no driver files (libcuda), the host's "
                    f"CDI specs are not used: {reason}"
                }
            ),
            "an Event",
        )


def test_missing_permissions_are_shown_in_a_gauge(settings: Settings, server: ApiServer) -> None:
    """Such an agent serves pods, and writes nothing."""
    user = "system:serviceaccount:gpu-turnstile-node:gpu-turnstile-agent"
    server.fail(Fault(403, message=f'User "{user}" cannot list resource "pods" at all'))

    def failing(agent: Agent) -> set[str]:
        pattern = r'requests_failing{reason="forbidden",resource="(\w+)",verb="(\w+)"} 1.0'
        found = re.findall(pattern, page(agent, "/metrics")[1])
        return {f"{verb} {resource}" for resource, verb in found}

    with running(settings, pace=replace(FAST, refresh=RefreshPace(sync=0.1))) as agent:
        eventually(lambda: ready(agent), "it is registered")
        with suppress(Unavailable):
            agent.pods.fetch("default", "a")  # as for a call about a pod that is not listed
        kinds = {"list pods", "get pods", "get nodes", "patch nodes"}
        eventually(lambda: failing(agent) == kinds, "each is shown")
        server.restore()
        eventually(lambda: not failing(agent), "it may do all again, although no pod is got")


def test_an_edited_cards_file_that_cannot_be_used_shows_in_a_gauge_and_the_node_stays_served(
    settings: Settings, tmp_path: Path, admin: ApiClient
) -> None:
    """The last one applies: without the gauge only a log line shows that the edit does not."""
    path = tmp_path / "cards.yaml"
    before = path.read_text()
    codec = "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
    why = f"cards: cannot read {path}: {codec}"
    with running(settings) as agent:
        for content, reason in ((before.encode(), ""), (b"\xff", why), (before.encode(), "")):
            path.write_bytes(content)
            sample = {f'cards_file_problem{{reason="{reason}"}} {float(bool(reason))}'}
            eventually(partial(shows, agent, sample), f"{sample}")
        eventually(lambda: events(admin), "an Event")
        (event,) = events(admin)
        text = f"the edited cards file cannot be used, the one before applies: {why}"
        assert (event["reason"], event["message"]) == ("GPUCardsFileNotUsed", text)


def test_it_registers_once_the_nodes_pods_are_known(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    """``List`` does not show the pod's wish: an agent that responds earlier overlooks it."""
    server.apply(make_manifest("a", (30, 8), annotations={NAMES.use_gpu_uuid: "GPU-1"}))
    server.set_outage(Outage.UNAVAILABLE)
    with running(settings) as agent:
        eventually(lambda: page(agent, "/readyz") == PODS_UNKNOWN, "it reports what it waits for")
        assert not registered(kubelet)
        server.set_outage(Outage.NONE)
        eventually(lambda: ready(agent), "registered")
        assert served(kubelet, admin, "a") == Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)


def test_another_kubelet_is_noticed_though_the_agent_is_registered_elsewhere(
    settings: Settings, folder: Path, server: ApiServer, admin: ApiClient
) -> None:
    """It does not know what its predecessor was promised, so the reservation does not count."""
    (folder / "k2").mkdir()
    own = folder / "k2" / "kubelet.sock"

    def seem_another(moment: HookPoint) -> None:
        if (moment.when, moment.what) == ("before", "Allocate"):
            own.chmod(0o777 if own.stat().st_mode & 1 == 0 else 0o600)

    kubelet = make_kubelet(folder, hook=seem_another)
    kubelet.start()
    server.apply(make_manifest("a", (30, 8)))
    with (
        socket.socket(socket.AF_UNIX) as served,
        running(replace(settings, kubelet_dir=own.parent)) as agent,
    ):
        served.bind(str(own))
        served.listen()
        eventually(lambda: ready(agent), "registered")
        serve(kubelet, admin, "a")
        assert 'decisions_total{call="allocate",evidence="witness"} 2.0' in metrics(agent)
    kubelet.stop()


def test_a_kubelet_that_starts_and_lists_nothing_yet_frees_nothing(
    settings: Settings, kubelet: Kubelet, folder: Path, server: ApiServer, admin: ApiClient
) -> None:
    """It serves ``List`` before it has read its checkpoint and made its socket (K11)."""
    server.apply(make_manifest("a", (30, 8)))
    (folder / "k2").mkdir()
    asked: list[str] = []

    def nothing() -> tuple[()]:
        asked.append("List")
        return ()

    pod_resources = settings.pod_resources_socket
    starting = PodResourcesServer(pod_resources, nothing, misbehavior=Misbehavior())
    with (
        socket.socket(socket.AF_UNIX) as serving,
        running(replace(settings, kubelet_dir=folder / "k2")) as agent,
    ):
        serving.bind(str(folder / "k2" / "kubelet.sock"))
        serving.listen()
        eventually(lambda: ready(agent), "registered")
        (card,) = served(kubelet, admin, "a").cards
        held = f'card_cores_held{{card="{card}"}} 30.0'
        eventually(lambda: held in metrics(agent), "it is counted")
        serving.close()  # the file stays
        kubelet.kill()
        eventually(lambda: "list_readable 0.0" in metrics(agent), "the kubelet has ended")
        starting.start()
        eventually(lambda: len(asked) > 2, "it is asked for its pods")
        assert held in metrics(agent)
        starting.stop()


def test_the_next_agent_is_ready_beside_the_old_one_and_serves_once_that_has_ended(
    settings: Settings, kubelet: Kubelet
) -> None:
    with running(settings) as first:
        eventually(lambda: ready(first), "the first is registered")
        before = len(registered(kubelet))
        with running(settings) as second:
            eventually(lambda: ready(second), "the next is ready")
            assert not second.registered
            assert len(registered(kubelet)) == before
            first.stop()
            eventually(lambda: second.registered, "the next is registered")


def test_free_amounts_are_not_published_before_they_are_known(
    settings: Settings,
    server: ApiServer,
    admin: ApiClient,
    kubelet: Kubelet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An inventory before the first ``List`` would show every card free."""
    surveys: list[PublishedInventory | None] = []
    survey: Callable[[Agent], PublishedInventory | None] = Agent._survey

    def counted(agent: Agent) -> PublishedInventory | None:
        surveys.append(survey(agent))
        return surveys[-1]

    monkeypatch.setattr(Agent, "_survey", counted)
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    released = threading.Event()
    kubelet.settings.misbehavior.at["List"] = lambda _resource: released.wait(DEADLINE_S)
    pace = replace(FAST, inventory=InventoryPace(write=0.01, check=0.01, freed=0.01))
    with running(settings, pace=pace) as agent:
        eventually(lambda: page(agent, "/readyz") == PODS_UNKNOWN, "it waits for List")
        seen = len(surveys)
        eventually(lambda: len(surveys) > seen + 2, "it has considered to write")
        assert not admin.get(NODE)["metadata"].get("annotations")
        assert not any(surveys)
        released.set()
        eventually(lambda: admin.get(NODE)["metadata"].get("annotations"), "the inventory")


def test_an_agent_that_cannot_load_never_registers_and_is_to_be_restarted(
    settings: Settings, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnforcerRunner, "tick", raising(RuntimeError("unforeseen")))
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    with running(settings) as agent:
        dead = (503, "a thread of the agent has ended unexpectedly\n")
        eventually(lambda: page(agent, "/healthz") == dead, "the probe fails")
        assert not registered(kubelet)


def test_a_block_that_cannot_be_served_stops_it_at_once(settings: Settings, tmp_path: Path) -> None:
    path = write_cards(tmp_path / "others.yaml", 8, "141Gi")
    message = r"\Amemory-block: Invalid value: 4Mi: .*use [0-9]+Mi or more\Z"
    with pytest.raises(SettingsError, match=message):
        Agent(replace(settings, cards=path, memory_block=4 << 20))


def test_a_refused_pod_and_a_vetoed_start_create_events(
    settings: Settings, server: ApiServer, admin: ApiClient, kubelet: Kubelet
) -> None:
    server.apply(make_manifest("a", (30, 999)), make_manifest("b", (30, 8)))
    too_large, mistaken = (admin.get(f"{PODS}/{name}") for name in ("a", "b"))
    uid, uid_b = (each["metadata"]["uid"] for each in (too_large, mistaken))
    cores = tuple(f"GPU-0::{number}" for number in range(20))
    with running(settings) as agent:
        eventually(lambda: ready(agent), "registered")
        eventually(lambda: has_devices(kubelet), "the kubelet has lists of devices")
        kubelet.add_pods(too_large)
        refused = eventually(lambda: kubelet.status(uid), "it is refused")
        eventually(lambda: events(admin), "the refusal is an Event")
        eventually(lambda: 'events_total{result="written"} 1.0' in metrics(agent), "counted")
        held: PodHoldings = {
            "c0": {NAMES.core: DeviceAllocation(cores, PluginResponse(), {NO_NODE: cores})}
        }
        CheckpointStore(kubelet.settings.plugin_dir).save(KubeletCheckpoint({uid_b: held}, {}))
        with pytest.raises(PluginCallFailed):
            client_of(kubelet, NAMES.core).pre_start(cores)
        eventually(lambda: len(events(admin)) == 2, "the veto is an Event")
    event, veto = sorted(events(admin), key=lambda each: str(each["reason"]))
    assert (veto["reason"], veto["message"]) == (
        "GPUStartVetoed",
        "container c0: 20 cores, but the container requests 30",
    )
    reason = "no card fits 30 cores and 999 memory blocks: "
    assert reason in refused["message"]
    assert event["message"].startswith(f"container c0: {reason}")
    assert (event["reason"], event["involvedObject"]["uid"]) == ("GPURefused", uid)
