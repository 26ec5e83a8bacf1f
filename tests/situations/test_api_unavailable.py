"""Situation 7, second half: the API server is unreachable for long; ``List`` is enough.

The whole agent runs in this process against the simulated API server. The test gives pods to the
kubelet, so that only the agent has the outage. The agent's waits are short: an outage lasts until
every part of the agent has failed several times.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.app.agent import Agent, AgentPace
from agent.app.refresher import RefreshPace
from agent.injection.inject import Injection
from agent.kubernetes_api import annotation_writer as writer
from agent.kubernetes_api import client as api_module
from common.apiserver import follower
from contract.allocation import Allocation, Evidence, decode_allocations
from simulator.api.faults import SILENCE, Outage
from simulator.api.resources import PODS
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ServerSettings
from simulator.cards import cards_file
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings as KubeletSettings
from simulator.kubelet.staticpods import mirror_of
from simulator.manifests import write_yaml
from tests.agent.app.whole import running
from tests.agent.fakes import eventually, make_settings, short_dir
from tests.situations.build import NAMES, Json, a_pod, gpu, sidecar, uid_of

PACE = AgentPace(refresh=RefreshPace(sync=0.1))
"""Without the API server an agent serves soon."""


class Site:
    """A kubelet with pods from the test, an API server, and the settings of an agent."""

    def __init__(self, folder: Path, server: ApiServer, log: pytest.LogCaptureFixture) -> None:
        self.server = server
        self.log = log
        self.kubelet = Kubelet(
            KubeletSettings(
                node_name="node",
                root_dir=folder / "k",
                plugin_dir=folder / "p",
                pod_resources_socket=folder / "r.sock",
                seed=1,
                list_rate=10_000.0,
                list_burst=1_000,
                init_run_s=(0.001, 0.005),
                grace_s=(0.001, 0.01),
                start_retry_s=0.05,
            )
        )
        write_yaml(folder / "cards.yaml", cards_file(2, "8Gi"))
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(kubeconfig_for(server.url))
        self.settings = make_settings(
            folder,
            node_name="node",
            kubeconfig=self.kubeconfig,
            cards=folder / "cards.yaml",
            inject=Injection.ENVVAR,
        )

    @contextmanager
    def agent(self) -> Iterator[Agent]:
        """Run a registered agent; it ends even in an outage."""
        with running(self.settings, pace=PACE) as agent:
            eventually(lambda: all(self._offered()), "both resources are offered")
            yield agent
        eventually(lambda: not any(self._offered()), "the kubelet has noticed its end")

    def _offered(self) -> list[int]:
        allocatable = self.kubelet.capacity()[1]
        return [allocatable.get(each, 0) for each in (NAMES.core, NAMES.memory)]

    # --- the API server, with or without an outage ------------------------------------------

    def create(self, manifest: Json) -> Json:
        """Create a pod that is bound to the node; return it as a kubelet gets it."""
        self.server.apply(manifest)
        return self.find(manifest["metadata"]["name"])

    def find(self, name: str) -> Json:
        found = self.server._store.find(PODS, "default", name)
        assert found is not None
        return found

    def recorded(self, name: str) -> dict[str, Allocation]:
        annotations = self.find(name)["metadata"].get("annotations") or {}
        return decode_allocations(annotations.get(NAMES.gpu_allocation, "{}"))

    def outlast(self) -> None:
        """Wait until the agent's lists and patches have failed several times."""
        lists, patches = (
            self.count_logs("no pods from the API server"),
            self.count_logs("allocation write failed, will retry"),
        )
        eventually(
            lambda: self.count_logs("no pods from the API server") >= lists + 3, "lists fail"
        )
        eventually(
            lambda: self.count_logs("allocation write failed, will retry") >= patches + 5,
            "patches fail",
        )

    def count_logs(self, message: str) -> int:
        return sum(each.getMessage() == message for each in self.log.records)

    # --- the kubelet --------------------------------------------------------------------------

    def admit(self, *objects: Json) -> None:
        """Have the kubelet admit pods, in this order, and wait until all containers run."""
        for each in objects:
            self.kubelet.add_pods(each)
        self.running(*objects)

    def running(self, *objects: Json) -> None:
        wanted = {
            (uid_of(each), container["name"])
            for each in objects
            for container in each["spec"]["containers"]
        }
        eventually(lambda: wanted <= self.kubelet.running(), f"{wanted} run")

    # --- checks -------------------------------------------------------------------------------

    def check_calls(self) -> None:
        """Check that every ``Allocate`` succeeded with the right target."""
        made = [
            (f"{each.namespace}/{each.pod}", each.container, each.resource.rpartition("-")[2])
            for each in self.kubelet.trace.rpcs("Allocate")
            if not each.error
        ]
        lines = [
            each.__dict__
            for each in self.log.records
            if each.name == "agent.observability.decision_log"
            and each.getMessage() in ("allocate", "refused")
        ]
        assert [(each["pod"], each["container"], each["resource"]) for each in lines] == made
        assert {each["evidence"] for each in lines} <= {
            Evidence.TICKET,
            Evidence.WITNESS,
            Evidence.ORDER,  # of pods that only the kubelet knows
        }

    def check_annotation(self, obj: Json) -> None:
        """Check that a pod's annotation equals the kubelet's state, container by container."""
        name = obj["metadata"]["name"]
        held: dict[str, dict[str, list[str]]] = {}
        for each in self.kubelet.held_devices():
            if (each.namespace, each.pod) == ("default", name):
                cards = [device_id.partition("::")[0] for device_id in each.ids]
                held.setdefault(each.container, {})[each.resource] = cards
        recorded = self.recorded(name)
        assert {*recorded} == {*held}
        for container, resources in held.items():
            got = recorded[container]
            assert got.cores == len(resources[NAMES.core])
            assert got.memory_blocks == len(resources[NAMES.memory])
            for cards in resources.values():
                assert {*got.cards} == {*cards}
            assert got.evidence is not Evidence.ORDER, container
        annotations = self.find(name)["metadata"]["annotations"]
        assert annotations[NAMES.gpu_assigned] == "true"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(ServerSettings(bookmark_s=0.1)) as running:
        yield running


@pytest.fixture
def site(
    server: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    caplog.set_level(logging.INFO, "agent")
    monkeypatch.setattr(follower, "_BACKOFF_SECONDS", (0.02, 0.1))
    monkeypatch.setattr(writer, "_BACKOFF_SECONDS", (0.02, 0.1))
    with short_dir() as folder:
        made = Site(folder, server, caplog)
        made.kubelet.start()
        made.kubelet.add_pods()
        try:
            yield made
        finally:
            server.set_outage(Outage.NONE)
            made.kubelet.stop()


def big(name: str, at: int) -> Json:
    return a_pod(
        name,
        gpu("c0", 10, 3),
        gpu("c1", 10, 5),
        init=[gpu("init", 10, 4), sidecar("sidecar", 5, 2)],
        at=at,
    )


def test_pods_bound_before_an_outage_start_in_it_and_are_annotated_after_it(site: Site) -> None:
    with site.agent() as agent:
        bound = [
            site.create(big("first", at=3)),
            site.create(a_pod("second", gpu("c0", 10, 2), at=2)),
            site.create(a_pod("third", gpu("c0", 10, 6), at=1)),
        ]
        eventually(lambda: len(agent.pods.pods()) == 3, "the agent knows the pods")
        site.server.set_outage(Outage.UNAVAILABLE)
        site.admit(*bound)
        site.outlast()
        assert agent.pending() == 3
        assert [site.recorded(each["metadata"]["name"]) for each in bound] == [{}] * 3
        site.server.set_outage(Outage.NONE)
        eventually(lambda: agent.pending() == 0, "everything is written")
    site.check_calls()
    for each in bound:
        site.check_annotation(each)
    annotations = site.find("first")["metadata"]["annotations"]
    assert annotations[NAMES.predicate_gpu_idx(0)] == annotations[NAMES.predicate_gpu_idx(1)] == "0"


def test_pods_unknown_to_the_agents_cache_are_served_by_list(site: Site) -> None:
    """Two that the watch has not delivered, a static one without a mirror, and a known one."""
    with site.agent() as agent:
        known = site.create(a_pod("known", gpu("c0", 10, 2), at=1))
        eventually(agent.pods.pods, "the agent knows the pod")
        site.server.fail(SILENCE, "watch .*")
        late = [
            site.create(a_pod("late", gpu("c0", 10, 6), gpu("c1", 10, 4), at=3)),
            site.create(a_pod("later", gpu("c0", 10, 3), at=2)),
        ]
        site.server.set_outage(Outage.REFUSED)
        site.admit(late[0])
        static = a_pod("static", gpu("c0", 10, 5), stamped=False)
        del static["metadata"]["uid"]
        uid = site.kubelet.add_static_pod(static)
        eventually(lambda: (uid, "c0") in site.kubelet.running(), "the static pod runs")
        site.admit(known, late[1])
        site.outlast()
        assert len(agent.pods.pods()) == 1
        site.server.restore()
        site.server.set_outage(Outage.NONE)
        eventually(lambda: all(site.recorded(n) for n in ("known", "late", "later")), "written")
        pod = next(each for each in site.kubelet.instance.pods() if each.uid == uid)
        mirror = site.create(mirror_of(pod))
        eventually(lambda: site.recorded("static-node"), "the mirror pod shows it, too")
        eventually(lambda: agent.pending() == 0, "everything is written")
    site.check_calls()
    site.check_annotation(known)
    for each in (*late, mirror):  # guessed, then proven
        site.check_annotation(each)


def test_an_agent_that_starts_in_an_outage_serves_without_knowing_any_pod(site: Site) -> None:
    """The previous agent has written nothing: all comes from the kubelet's state."""
    with site.agent() as agent:
        before = site.create(a_pod("before", gpu("c0", 10, 2), gpu("c1", 20, 4), at=3))
        eventually(agent.pods.pods, "the agent knows the pod")
        site.server.set_outage(Outage.UNAVAILABLE)
        site.admit(before)
        site.outlast()
    arriving = [
        site.create(a_pod("first", gpu("c0", 10, 6), gpu("c1", 10, 3), at=2)),
        site.create(a_pod("second", gpu("c0", 10, 5), at=1)),
    ]
    with site.agent() as agent:
        site.admit(*arriving)
        assert not agent.pods.synced.is_set()
        assert agent.pods.pods() == ()
        site.server.set_outage(Outage.NONE)
        eventually(
            lambda: all(site.recorded(n) for n in ("before", "first", "second")), "all is written"
        )
        eventually(lambda: agent.pending() == 0, "everything is written")
    site.check_calls()
    site.check_annotation(before)
    for each in arriving:
        site.check_annotation(each)
    holders = [(held.resource, each) for held in site.kubelet.held_devices() for each in held.ids]
    assert len(set(holders)) == len(holders)


def test_an_api_server_that_never_responds_delays_no_call_for_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts the connection and sends nothing."""
    monkeypatch.setattr(api_module, "_GET_SECONDS", 0.2)
    with ApiServer() as silent:
        silent.fail(SILENCE)
        site.kubeconfig.write_text(kubeconfig_for(silent.url))
        agent = Agent(site.settings, pace=PACE)
        agent.start()
        try:
            pod = site.create(a_pod("unknown", gpu("c0", 10, 2)))
            eventually(lambda: all(site._offered()), "both resources are offered")
            site.admit(pod)
        finally:
            agent.stop()
            silent.restore()
    site.check_calls()
    assert {each.path for each in silent.requests} >= {
        "/api/v1/pods",
        "/api/v1/namespaces/default/pods/unknown",
    }
