"""``python -m scheduler`` in processes of its own, over TLS, beside a simulated API server."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.issue import issue
from certs.names import parse_subject
from simulator.api.server import ApiServer, Settings, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.webhook.serving import DEADLINE, JSON, Running, free_port

ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"


class Replica(Running):
    def request(self, path: str, document: object = None) -> tuple[int, str]:
        with contextlib.closing(self.http()) as connection:
            if document is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(document), JSON)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def responds_with(self, path: str, text: str) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return text in self.request(path)[1]
        return False

    def binds(self) -> bool:
        return self.responds_with("/metrics", "gpu_turnstile_scheduler_leader 1.0")

    def kill(self) -> None:
        """Die with the worker, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)


def certificates(folder: Path) -> None:
    issued = issue(parse_subject(["localhost"], [], 7), now=datetime.now(UTC))
    issued.write(folder, force=True)


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer(Settings(bookmark_s=0.2)) as running:
        running.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-turnstile"}},
        )
        yield running


@pytest.fixture
def admin(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as client:
        yield client


@contextlib.contextmanager
def running(server: ApiServer, folder: Path, name: str, *options: str) -> Iterator[Replica]:
    port = free_port()
    kubeconfig, log = folder / f"{name}.kubeconfig", folder / f"{name}.log"
    kubeconfig.write_text(kubeconfig_for(server.url))
    tls = folder / "tls"
    if not tls.exists():
        certificates(tls)
    arguments = [
        *(sys.executable, "-m", "scheduler", "--host", "127.0.0.1", "--port", str(port)),
        *("--cert", str(tls / "tls.crt"), "--key", str(tls / "tls.key")),
        *("--kubeconfig", str(kubeconfig), "--identity", name, *options),
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "error", "HOME": "/proc/none"}
    environment.pop("XDG_RUNTIME_DIR", None)
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            arguments, stderr=stderr, env=environment, cwd=ROOT, start_new_session=True
        ) as process,
    ):
        replica = Replica(process, port, tls, log)
        try:
            replica.wait(lambda: replica.responds_with("/readyz", "ok"))
            yield replica
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(DEADLINE)


def create(server: ApiServer, admin: ApiClient, name: str, *limits: tuple[int, int]) -> Json:
    server.apply(make_pod(name, *limits, uid=""))
    return admin.get(f"{PODS}/{name}")


def schedule(replica: Replica, pod: Json, nodes: list[str]) -> str:
    """Do with one pod what kube-scheduler does; return the error, or nothing."""
    args = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
    filtered = json.loads(replica.request("/filter", args)[1])
    if filtered["Error"] or not filtered["NodeNames"]:
        return filtered["Error"] or "no node"
    scores = json.loads(
        replica.request("/prioritize", {**args, "NodeNames": filtered["NodeNames"]})[1]
    )
    best = max(scores, key=lambda each: each["Score"])["Host"]
    metadata = pod["metadata"]
    binding = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": best,
    }
    return str(json.loads(replica.request("/bind", binding)[1])["Error"])


# Python's ssl leaves a socket open whose peer disconnects between TCP's handshake and TLS's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_leader_fails_no_pod_and_books_no_card_twice(
    server: ApiServer, admin: ApiClient, tmp_path: Path
) -> None:
    nodes = [f"two-{number}" for number in range(3)]
    server.apply(*(make_node(name, 4) for name in nodes))
    options = ("--lease", "two")
    with (
        running(server, tmp_path, "first", *options) as first,
        running(server, tmp_path, "second", *options) as second,
    ):
        leader = eventually(
            lambda: next((each for each in (first, second) if each.binds()), None), "one binds"
        )
        other = second if leader is first else first
        pods = [create(server, admin, f"two-p{number}", (40, 4)) for number in range(24)]
        refused = other.request(
            "/bind", {"PodName": "x", "PodNamespace": "x", "PodUID": "x", "Node": "x"}
        )
        assert "not the leader" in refused[1]
        # kube-scheduler keeps connections: the one to the wrong replica has to end.
        assert (_stays_open(leader), _stays_open(other)) == (True, False)

        taken_over = threading.Event()

        def bind(pod: Json) -> None:
            """Try as kube-scheduler does, until it is bound: another pod may have been faster."""
            with contextlib.suppress(OSError, http.client.HTTPException):
                leader.wait(lambda: not schedule(leader, pod, nodes))
                return
            assert taken_over.wait(DEADLINE)
            # Killed before it could respond: by its own watch kube-scheduler knows that the pod
            # is bound, and sends no more. The pod may have the last slots.
            if not admin.get(f"{PODS}/{pod['metadata']['name']}")["spec"].get("nodeName"):
                other.wait(lambda: not schedule(other, pod, nodes))

        with ThreadPoolExecutor(8) as pool:
            done = pool.map(bind, pods)
            leader.wait(lambda: len(_bound(admin, "two-p")) >= 6)
            leader.kill()
            other.wait(other.binds)
            taken_over.set()
            assert len(list(done)) == 24
    chosen = Counter(
        (each["spec"]["nodeName"], each["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)])
        for each in _bound(admin, "two-p")
    )
    assert chosen.total() == 24
    assert max(chosen.values()) <= 2  # of 40 cores each


def _stays_open(replica: Replica) -> bool:
    with contextlib.closing(replica.http()) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().getheader("Connection") != "close"


def _bound(admin: ApiClient, prefix: str) -> list[Json]:
    return [
        each
        for each in admin.get(PODS)["items"]
        if each["metadata"]["name"].startswith(prefix) and each["spec"].get("nodeName")
    ]
