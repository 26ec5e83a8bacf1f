"""One replica assembled in this process: threads, readiness, and its process."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.serving.app import VERIFIED
from common.serving.tls import Files, ServedCertificate
from placement.scoring import Policy
from scheduler.app import create_app
from scheduler.cluster import LONGEST_BINDING
from scheduler.election import LAST_REQUESTS
from scheduler.extender import Extender
from scheduler.metrics import Metrics
from scheduler.server import ExtenderServer, serve
from scheduler.settings import Settings
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.builders import raising
from tests.agent.fakes import FakeClock, eventually
from tests.common.serving.through import client_of
from tests.placement.cluster.builders import NAMES, hint, make_node, make_pod
from tests.scheduler.leases import take_turn

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-turnstile/leases"
LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.apply(
            make_node("n1", 2),
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-turnstile"}},
        )
        yield running


@pytest.fixture
def files(tmp_path: Path, certificates: Path) -> Files:
    for name in ("tls.crt", "tls.key"):
        shutil.copy(certificates / name, tmp_path)
    return Files(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.fixture
def settings(api: ApiServer, files: Files, tmp_path: Path) -> Settings:
    (tmp_path / "kubeconfig").write_text(kubeconfig_for(api.url))
    return Settings(
        host="127.0.0.1",
        port=8444,
        files=files,
        names=NAMES,
        kubeconfig=tmp_path / "kubeconfig",
        policy=Policy.SPREAD,
        threads=4,
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("where", "thread"),
    [
        ("scheduler.state.State.known_pods", "watch-pods"),
        ("scheduler.state.State.replace_nodes", "watch-nodes"),
        ("scheduler.election.Election.step", "leadership"),
    ],
)
def test_a_replica_whose_thread_has_ended_must_be_restarted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, where: str, thread: str
) -> None:
    extender = Extender(settings, Metrics())
    app = create_app(extender.handler, is_ready=lambda: "", is_broken=extender.broken)
    health = partial(client_of(app).get, "/healthz")
    assert (health().status_code, health().text) == (200, "ok\n")

    monkeypatch.setattr(where, raising(RuntimeError("an internal error")))
    extender.start()
    eventually(lambda: health().status_code == 503, "its liveness probe fails")

    assert health().text == f"thread {thread} has ended, see the log\n"
    extender.stop()
    assert health().status_code == 200


def test_a_replica_is_ready_once_in_step_and_releases_the_lease(settings: Settings) -> None:
    extender = Extender(settings, Metrics(), clock=FakeClock())  # no lease expires
    assert extender.not_ready() == "not ready yet: nodes and pods are being listed"
    extender.start()
    eventually(lambda: not extender.not_ready(), "it is ready")
    eventually(lambda: not extender.leadership.not_binding(), "it binds")
    text = extender.metrics.render().decode()
    for line in ("leader 1.0", "in_step 1.0", "known_nodes 1.0", "known_pods 0.0"):
        assert f"gpu_turnstile_scheduler_{line}" in text
    extender.stop()
    assert extender.not_ready() == "shutting down"
    assert extender.leadership.not_binding() == "shutting down"
    assert not extender.leadership.leads


def test_the_worker_serves_the_replica_and_ends_it(settings: Settings, files: Files) -> None:
    server = ExtenderServer(settings, ServedCertificate(files))
    assert not server.keeps()
    client = client_of(server.load())
    eventually(lambda: client.get("/readyz").status_code == 200, "it is ready")
    eventually(server.keeps, "it leads")
    server.end()
    assert client.get("/readyz").text == "shutting down\n"
    assert not server.keeps()  # the next connection finds the leader
    server.end()


def test_the_worker_requires_a_certificate_of_the_client_ca(
    settings: Settings, files: Files
) -> None:
    demanding = replace(settings, files=replace(files, client_ca=files.cert))
    server = ExtenderServer(demanding, ServedCertificate(files))
    client = client_of(server.load())
    refused = client.post("/filter", json={})
    text = "a client certificate issued by --client-ca is needed\n"
    assert (refused.status_code, refused.text) == (403, text)
    assert client.get("/healthz").text == "ok\n"
    server.end()


def test_beside_a_kube_scheduler_only_local_requests_are_handled_and_nothing_is_written(
    settings: Settings, api: ApiServer
) -> None:
    beside = replace(settings, files=None, kube_scheduler_lease="own", identity="pod-0")
    server = ExtenderServer(beside, None)
    client = client_of(server.load())
    eventually(lambda: client.get("/readyz").status_code == 200, "it is ready")
    refused = client.post("/bind", json={})
    assert (refused.status_code, refused.text) == (
        403,
        "only requests from the same pod are handled\n",
    )
    local = {VERIFIED: True}
    assert client.post("/filter", json={}, environ_overrides=local).status_code == 200
    server.end()
    assert {each.verb for each in api.requests} <= {"get", "list", "watch"}


def test_a_binding_waits_until_those_of_the_kube_scheduler_before_have_ended(
    settings: Settings, api: ApiServer
) -> None:
    """The next one requests Bindings at once; what was bound last counts in the choice of cards."""
    beside = replace(settings, files=None, kube_scheduler_lease="own", identity="pod-1")
    clock = FakeClock()
    extender = Extender(beside, Metrics(), clock=clock)
    client = client_of(create_app(extender.handler, is_ready=extender.not_ready))
    api.apply(*(make_pod(name, (100, 4), uid="") for name in ("last", "next")))
    with ApiClient(api.url) as admin, ThreadPoolExecutor(1) as pool:
        admin.create(LEASES, {**LEASE, "metadata": {"name": "own"}})

        def pass_time(seconds: float, holder: str) -> None:
            for at in range(round(seconds)):
                spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": str(at)}
                admin.patch(f"{LEASES}/own", {"spec": spec})
                clock.now += 1.0
                take_turn(extender.leadership)

        def binds() -> bool:
            take_turn(extender.leadership)
            return not extender.leadership.not_binding()

        take_turn(extender.leadership)
        eventually(lambda: not extender.not_ready(), "nodes and pods are listed")
        pass_time(LAST_REQUESTS + LONGEST_BINDING, "pod-0_a")
        pass_time(1, "pod-1_b")
        uid = admin.get(f"{PODS}/next")["metadata"]["uid"]
        binding = {"PodName": "next", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}
        last = {"metadata": {"name": "last", "annotations": hint("0")}, "target": {"name": "n1"}}
        admin.create(f"{PODS}/last/binding", last)
        bound = pool.submit(client.post, "/bind", json=binding)
        waits = extender.leadership.not_binding()
        pass_time(LAST_REQUESTS + LONGEST_BINDING, "pod-1_b")
        try:
            eventually(binds, "pods are listed again")
        finally:
            clock.now += 0.0 if binds() else 60.0  # the request waits no longer
        assert waits == "not the leader: pod-1_b held the lease when it was last read"
        assert json.loads(bound.result().text) == {"Error": ""}
        found = admin.get(f"{PODS}/next")["metadata"]["annotations"]
        assert found[NAMES.predicate_gpu_idx(0)] == "1"
    extender.stop()


def test_unusable_settings_are_found_before_the_port_is_opened(
    settings: Settings, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[ExtenderServer] = []

    def run(server: ExtenderServer) -> None:
        ran.append(server)

    monkeypatch.setattr(ExtenderServer, "run", run)
    serve(settings)
    assert len(ran) == 1
    key = files.key.read_bytes()
    files.key.write_bytes(b"junk")
    with pytest.raises(SettingsError, match=r"is not a PEM private key$"):
        serve(settings)
    files.key.write_bytes(key)
    (tmp_path / "kubeconfig").write_text("[]")
    with pytest.raises(SettingsError, match=r"^--kubeconfig: cannot use "):
        serve(settings)
    assert len(ran) == 1
