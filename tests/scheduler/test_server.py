"""``python -m scheduler`` in processes of its own, over TLS, beside a simulated API server."""

import contextlib
import http.client
import json
import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from simulator.api.server import ApiServer, Settings, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.common.serving.in_process import DEADLINE, JSON
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.webhook.serving import Running, running

PODS = "/api/v1/namespaces/default/pods"


class Extender(Running):
    def send(self, verb: str, document: Json) -> Any:
        with contextlib.closing(self.http()) as connection:
            connection.request("POST", f"/{verb}", json.dumps(document), JSON)
            return json.loads(connection.getresponse().read())

    def binds(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return "gpu_turnstile_scheduler_leader 1.0" in self.get("/metrics")[1]
        return False

    def kill(self) -> None:
        """Die with the worker, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)


def schedule(replica: Extender, pod: Json, nodes: list[str]) -> str:
    """Do with one pod what kube-scheduler does; return the error, or nothing."""
    args = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
    filtered = replica.send("filter", args)
    if filtered["Error"] or not filtered["NodeNames"]:
        return filtered["Error"] or "no node"
    scores = replica.send("prioritize", {**args, "NodeNames": filtered["NodeNames"]})
    best = max(scores, key=lambda each: each["Score"])["Host"]
    metadata = pod["metadata"]
    binding = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": best,
    }
    return str(replica.send("bind", binding)["Error"])


# Python's ssl leaves a socket open whose peer disconnects between TCP's handshake and TLS's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_leader_fails_no_pod_and_books_no_card_twice(
    certificates: Path, tmp_path: Path
) -> None:
    nodes = [f"n{number}" for number in range(3)]
    names = [f"p{number}" for number in range(24)]

    def starting(identity: str) -> AbstractContextManager[Extender]:
        kubeconfig = tmp_path / f"{identity}.kubeconfig"
        kubeconfig.write_text(kubeconfig_for(server.url))
        options = ("--kubeconfig", str(kubeconfig), "--identity", identity, "--lease", "two")
        log = tmp_path / f"{identity}.log"
        return running(Extender, certificates, log, "scheduler", "--host", "127.0.0.1", *options)

    with (
        ApiServer(Settings(bookmark_s=0.2)) as server,
        ApiClient(server.url) as admin,
        contextlib.ExitStack() as stack,
    ):
        server.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-turnstile"}},
            *(make_node(name, 4) for name in nodes),
            *(make_pod(name, (40, 4), uid="") for name in names),
        )
        first, second = (stack.enter_context(starting(each)) for each in ("first", "second"))
        leader = eventually(
            lambda: next((each for each in (first, second) if each.binds()), None), "one binds"
        )
        other = second if leader is first else first
        pods = [admin.get(f"{PODS}/{name}") for name in names]
        fields = ("PodName", "PodNamespace", "PodUID", "Node")
        assert "not the leader" in other.send("bind", dict.fromkeys(fields, "x"))["Error"]
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
            leader.wait(lambda: len(_bound(admin)) >= 6)
            leader.kill()
            other.wait(other.binds)
            taken_over.set()
            assert len(list(done)) == 24
        bound = _bound(admin)
    chosen = Counter(
        (each["spec"]["nodeName"], each["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)])
        for each in bound
    )
    assert chosen.total() == 24
    assert max(chosen.values()) <= 2  # of 40 cores each


def _stays_open(replica: Extender) -> bool:
    with contextlib.closing(replica.http()) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().getheader("Connection") != "close"


def _bound(admin: ApiClient) -> list[Json]:
    return [each for each in admin.get(PODS)["items"] if each["spec"].get("nodeName")]
