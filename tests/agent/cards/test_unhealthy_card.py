"""A card becomes unhealthy and recovers under a whole agent, simulated kubelet and API server.

The cards are the stand-in of NVML: what happens to them goes through pynvml.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.allocator.slots import Slot
from agent.app.agent import Agent
from agent.cards.discovery import Pace
from agent.cards.nvml import NvmlSource
from agent.injection.inject import Injection
from agent.kubernetes_api.inventory import InventoryPace
from agent.settings import MigMode, Settings
from contract.inventory import Card, PublishedInventory, decode_inventory
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import make_kubelet
from tests.agent.app.whole import FAST, PODS, events, metrics, page, running
from tests.agent.fakes import NAMES, eventually, make_manifest, make_settings
from tests.agent.nvml_node import (
    GIB,
    NvmlScript,
    instance_at,
    instance_uuid,
    load,
    mig_minors,
    unload,
    uuid,
)

NODE = "/api/v1/nodes/n1"
PACE = replace(
    FAST,
    cards=Pace(step=0.02, probe=0.05, renew=0.2, retry=0.05, retry_most=0.05),
    inventory=InventoryPace(write=0.02, check=0.05, freed=0.02, retry=0.05, retry_most=0.05),
)


class Stage:
    def __init__(self, agent: Agent, admin: ApiClient, kubelet: Kubelet) -> None:
        self.agent = agent
        self.admin = admin
        self.kubelet = kubelet

    def offered(self) -> tuple[str, str]:
        status = self.admin.get(NODE).get("status", {})
        offered, total = (status.get(each, {}) for each in ("allocatable", "capacity"))
        return offered.get(NAMES.core, "0"), total.get(NAMES.core, "0")

    def run(self, name: str, cores: int, memory: int, **wishes: str) -> str:
        """Create a pod of one container; gives its card once it runs."""
        self.create(name, cores, memory, **wishes)
        eventually(lambda: self.phase(name) == "Running", f"{name} runs")
        held = [each for each in self.kubelet.held_devices() if each.pod == name]
        (card,) = {Slot.parse(slot).card for each in held for slot in each.ids}
        return card

    def create(self, name: str, cores: int, memory: int, **wishes: str) -> None:
        annotations = {getattr(NAMES, wish): text for wish, text in wishes.items()}
        self.admin.create(PODS, make_manifest(name, (cores, memory), annotations=annotations))

    def phase(self, name: str) -> str:
        return str(self.admin.get(f"{PODS}/{name}").get("status", {}).get("phase", ""))

    def inventory(self) -> PublishedInventory:
        """The node's annotation; without cards before it is written."""
        text = self.admin.get(NODE)["metadata"].get("annotations", {}).get(NAMES.gpu_cards)
        return PublishedInventory(0) if text is None else decode_inventory(text)

    def shown(self) -> dict[int, Card]:
        return {each.index: each for each in self.inventory().cards}

    def free(self) -> dict[int, tuple[int, int]]:
        found = self.inventory()
        return {card.index: free for card, free in zip(found.cards, found.free, strict=True)}

    def events(self, kind: str = "Node") -> list[dict[str, Any]]:
        return [each for each in events(self.admin) if each["involvedObject"]["kind"] == kind]


@pytest.fixture
def kubelet(folder: Path, server: ApiServer, admin: ApiClient) -> Iterator[Kubelet]:
    made = make_kubelet(folder, admin, node_status_s=0.1)
    made.start()
    eventually(lambda: admin.get("/api/v1/nodes")["items"], "the kubelet creates its node")
    yield made
    made.stop()


@pytest.fixture
def settings(folder: Path, kubeconfig: Path) -> Settings:
    return make_settings(
        folder,
        kubeconfig=kubeconfig,
        kubelet_dir=folder / "plugins",
        plugin_dir=folder / "plugins",
        pod_resources_socket=folder / "pr.sock",
        inject=Injection.ENVVAR,
        recovery_quiet=0.5,
    )


Launch = Callable[..., AbstractContextManager[Stage]]


@pytest.fixture
def launch(settings: Settings, tmp_path: Path, admin: ApiClient, kubelet: Kubelet) -> Launch:
    @contextmanager
    def launched(**changes: Any) -> Iterator[Stage]:
        changed = replace(settings, **changes)
        mig = changed.mig is MigMode.SHARES
        source = NvmlSource(tmp_path / "sys", proc=tmp_path, mig=mig)
        with running(changed, source=source, pace=PACE) as agent:
            yield Stage(agent, admin, kubelet)

    return launched


@pytest.fixture
def stage(node: NvmlScript, launch: Launch) -> Iterator[Stage]:
    with launch() as made:
        eventually(lambda: made.offered() == ("200", "200"), "the cards are offered")
        yield made


def test_a_card_falls_off_the_bus_pods_go_elsewhere_and_it_comes_back(
    stage: Stage, node: NvmlScript
) -> None:
    assert stage.run("before", 30, 8) == uuid(0)
    eventually(lambda: stage.free() == {0: (70, 312), 1: (100, 320)}, "what is free is shown")

    with node.at_once():  # its own driver does not find it any more
        node.event(0, data=79)
        node.fail("nvmlDeviceGetHandleByUUID", 15, card=0)
        node.fail("nvmlDeviceGetHandleByIndex_v2", 15, card=0)
    eventually(lambda: stage.offered() == ("100", "200"), "its devices are unhealthy")
    eventually(lambda: stage.shown()[0].unhealthy != "", "the node shows it")
    assert stage.shown()[0].unhealthy.startswith("Xid 79 (GPU has fallen off the bus) at ")
    assert stage.shown()[1].unhealthy == ""
    assert stage.phase("before") == "Running"
    assert stage.run("during", 30, 8) == uuid(1)  # binpack alone would take the other card
    eventually(stage.events, "an Event")
    (event,) = stage.events()
    assert (event["reason"], event["type"]) == ("GPUUnhealthy", "Warning")
    healthy = f'card_healthy{{card="{uuid(0)}",index="0",model="NVIDIA A100-SXM4-80GB"}}'
    counted = f'card_events_total{{card="{uuid(0)}",fault="card",kind="xid",xid="79"}} 1.0'
    assert {f"{healthy} 0.0", counted, 'cards{state="served"} 2.0'} <= metrics(stage.agent)

    node.restore()  # an admin has reset it
    eventually(lambda: stage.offered() == ("200", "200"), "its devices are healthy again")
    eventually(lambda: stage.shown()[0].unhealthy == "", "the node shows it")
    eventually(lambda: len(stage.events()) == 2, "an Event")
    assert {each["reason"] for each in stage.events()} == {"GPUUnhealthy", "GPUHealthy"}
    assert f"{healthy} 1.0" in metrics(stage.agent)
    assert stage.run("after", 60, 8) == uuid(0)
    assert stage.phase("before") == stage.phase("during") == "Running"
    stage.admin.delete(f"{PODS}/during")
    eventually(lambda: stage.free()[1] == (100, 320), "what it held is free, and shown")


def test_a_driver_that_comes_late_is_used_and_its_faults_are_kept_for_the_next_agent(
    node: NvmlScript, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers report an Xid once, and before R565 no recovery action."""
    node.forget("card 0 action", "card 1 action")
    unload(monkeypatch)
    with launch() as stage:
        eventually(stage.events, "an Event")
        (event,) = stage.events()
        assert event["reason"] == "GPUsUnavailable"
        assert page(stage.agent, "/readyz") == (503, event["message"] + "\n")
        assert stage.shown() == {}
        sample = f'cards_problem{{reason="{event["message"]}"}} 1.0'
        assert sample in metrics(stage.agent)
        load(monkeypatch, tmp_path)
        eventually(lambda: stage.offered() == ("200", "200"), "the cards are offered")
        eventually(lambda: page(stage.agent, "/readyz") == (200, "ok\n"), "it is ready")
        eventually(lambda: sorted(stage.shown()) == [0, 1], "the node shows them")
        node.event(0, data=119)
        eventually(lambda: stage.offered() == ("100", "200"), "its devices are unhealthy")
    load(monkeypatch, tmp_path)
    with launch(recovery_quiet=0.0) as stage:
        eventually(lambda: stage.shown()[0].unhealthy != "", "the node shows it")
        assert stage.shown()[0].unhealthy.startswith("Xid 119 (GSP RPC timeout) at ")
        node.card(0, action=0)  # a driver that reports that nothing is needed
        eventually(lambda: stage.offered() == ("200", "200"), "it comes back")


def test_mig_instances_are_served_to_shares_and_to_pods_that_name_them(
    node: NvmlScript, launch: Launch, tmp_path: Path
) -> None:
    first, second, later = (instance_uuid(0, gpu) for gpu in (7, 9, 3))
    node.mig(0, 7, 9)
    mig_minors(tmp_path, (0, 7), (0, 9), (0, 3))
    with launch(mig=MigMode.SHARES) as stage:
        eventually(lambda: stage.offered() == ("300", "300"), "instances and a card are offered")
        eventually(lambda: sorted(stage.shown()) == [1, 1007, 1009], "the node shows them")
        assert stage.shown()[1007].model == "NVIDIA A100-SXM4-80GB MIG 1g.5gb"
        assert stage.run("share", 30, 8) == first
        eventually(lambda: stage.free()[1007] == (70, 12), "its memory is the instance's")
        assert stage.run("whole", 100, 8) == uuid(1)
        stage.create("second", 100, 8)
        eventually(lambda: stage.phase("second") == "Failed", "no instance is a whole card")
        eventually(lambda: stage.events("Pod"), "the refusal is an Event")
        (refused,) = stage.events("Pod")
        rule = "MIG instance: only for shares of one card, unless use-gpu-type or use-gpu-uuid"
        assert rule in refused["message"]
        assert stage.run("named", 100, 8, use_gpu_type="mig") == second

        node.event(0, data=94, instance=9)
        eventually(lambda: len(stage.events()) == 2, "it is reported, and its recovery")
        reported = sorted((each["reason"], each["message"][:9]) for each in stage.events())
        assert reported == [("GPUHealthy", "card 1009"), ("GPUUnhealthy", "card 1009")]

        node.forget("instance 0 0")  # an admin destroys one, and makes another
        node.set("instance 0 2", f"3 0 {later}")
        node.card(instance_at(0, 2), name="X MIG 2g.10gb", memory=10 * GIB)
        eventually(lambda: stage.offered() == ("200", "300"), "the destroyed one is not offered")
        gone = "this MIG instance does not exist any more"
        eventually(lambda: stage.shown()[1007].unhealthy.startswith(gone), "the node shows why")
        assert stage.phase("share") == "Running"
        late = f"card {later} can be served once the agent is started again"
        eventually(
            lambda: late in {each["message"] for each in stage.events()}, "the new one is an Event"
        )
    with launch(mig=MigMode.SHARES) as stage:
        eventually(lambda: sorted(stage.shown()) == [1, 1003, 1009], "the next agent serves it")
        eventually(
            lambda: "GPUMissing" in {each["reason"] for each in stage.events("Pod")},
            "the pod on the destroyed one gets an Event",
        )
