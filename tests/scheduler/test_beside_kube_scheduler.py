"""Two extenders beside a kube-scheduler each; the test moves their clocks."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.app import create_app
from scheduler.cluster import LONGEST_BINDING
from scheduler.election import LAST_REQUESTS
from scheduler.extender import Extender
from scheduler.metrics import Metrics
from scheduler.settings import Settings
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import FakeClock, eventually
from tests.common.serving.through import call, scope_of
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.scheduler.leases import take_turn

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-turnstile/leases"
SETTLED = LAST_REQUESTS + LONGEST_BINDING
PODS = "/api/v1/namespaces/default/pods"


class KubeSchedulers:
    """The Lease of kube-schedulers in pods of their own, renewed as client-go does."""

    def __init__(self, admin: ApiClient) -> None:
        self._admin = admin
        self._holder, self._transitions, self._renewals = "", -1, 0
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        admin.create(LEASES, {**kind, "metadata": {"name": "own"}})

    def lead(self, holder: str) -> None:
        self._transitions += holder not in ("", self._holder)
        self._holder = holder
        self.renew()

    def renew(self) -> None:
        self._renewals += 1
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": 15 if self._holder else 1,
            "leaseTransitions": self._transitions,
            "renewTime": str(self._renewals),
        }
        self._admin.patch(f"{LEASES}/own", {"spec": spec})


class Replica:
    """One extender in this process, with a clock of its own."""

    def __init__(self, server: ApiServer, lease: KubeSchedulers, folder: Path, pod: str) -> None:
        path = folder / "kubeconfig"
        path.write_text(kubeconfig_for(server.url))
        self._lease = lease
        self._clock = FakeClock()
        settings = Settings(
            host="127.0.0.1",
            port=8444,
            files=None,
            names=NAMES,
            kubeconfig=path,
            namespace="gpu-turnstile",
            kube_scheduler_lease="own",
            identity=pod,
        )
        self.extender = Extender(settings, Metrics(), clock=self._clock)
        self._app = create_app(self.extender.handler, is_ready=self.extender.not_ready)

    def start(self) -> None:
        """List nodes and pods, and read the lease; no thread does that by itself."""
        self.extender.watches.start()
        eventually(lambda: not self.extender.not_ready(), "nodes and pods are listed")
        take_turn(self.extender.leadership)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; each second the lease is renewed and read."""
        for _ in range(round(seconds)):
            self._lease.renew()
            self._clock.now += 1.0
            take_turn(self.extender.leadership)

    def binds(self) -> bool:
        take_turn(self.extender.leadership)  # else no thread notices that pods are listed
        return not self.extender.leadership.not_binding()

    async def schedule(self, pod: Json, nodes: list[str]) -> str:
        """Send kube-scheduler's requests about one pod; return the error of the last one."""
        filtered = await self._post("filter", {"Pod": pod, "NodeNames": nodes})
        assert filtered["NodeNames"] == nodes
        metadata = pod["metadata"]
        binding = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": nodes[0],
        }
        return str((await self._post("bind", binding))["Error"])

    async def _post(self, verb: str, document: Json) -> Json:
        environ = {"PATH_INFO": f"/{verb}", "REQUEST_METHOD": "POST"}
        scope = scope_of({**environ, "CONTENT_TYPE": "application/json"})
        sent = await call(self._app, scope, [json.dumps(document).encode()])
        found: Json = json.loads(sent[1]["body"])
        return found


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-turnstile"}},
            make_node("n1", 8),  # room for two of the pods on each card
        )
        yield running


def test_each_extender_binds_in_the_term_of_its_kube_scheduler_and_no_card_twice(
    server: ApiServer, tmp_path: Path
) -> None:
    """A burst, and in its midst one kube-scheduler ends; the next one requests Bindings at once."""
    with ApiClient(server.url) as admin:
        lease = KubeSchedulers(admin)
        first, second = (Replica(server, lease, tmp_path, f"pod-{each}") for each in (0, 1))
        lease.lead("pod-0_a")
        for each in (first, second):
            each.start()
            each.pass_time(SETTLED)
        eventually(first.binds, "the first binds")
        assert not second.binds()
        names = [f"p{number}" for number in range(16)]
        server.apply(*(make_pod(name, (40, 4), uid="") for name in names))
        pods = [admin.get(f"{PODS}/{name}") for name in names]

        async def burst() -> None:
            done = await asyncio.gather(*(first.schedule(each, ["n1"]) for each in pods[:7]))
            assert set(done) == {""}
            lease.lead("")
            lease.lead("pod-1_b")
            rest = [asyncio.create_task(second.schedule(each, ["n1"])) for each in pods[7:]]
            await asyncio.to_thread(second.pass_time, 1 + SETTLED)
            await asyncio.to_thread(eventually, second.binds, "the second binds")
            assert set(await asyncio.gather(*rest)) == {""}  # they waited, and failed no pod

        asyncio.run(burst())
        assert not first.binds()
        bound = [admin.get(f"{PODS}/{name}") for name in names]
        cards = [each["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] for each in bound]
        assert sorted(cards) == sorted([*map(str, range(8))] * 2)
        for each in (first, second):
            each.extender.stop()
