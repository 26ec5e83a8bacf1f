"""The kubelet against the simulated API server, over HTTP."""

from collections.abc import Iterator

import pytest

from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from tests.simulator.kubelet_helpers import CORE, node, wait_for

_PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def client() -> Iterator[ApiClient]:
    with ApiServer() as server, ApiClient(server.url) as connected:
        yield connected


def a_pod(name: str) -> Json:
    limits = {CORE: "2"}
    containers = [{"name": "c", "image": "none", "resources": {"limits": limits}}]
    return {"metadata": {"name": name}, "spec": {"nodeName": "n1", "containers": containers}}


def phases(client: ApiClient) -> list[str]:
    return [pod.get("status", {}).get("phase", "") for pod in client.list("/api/v1/pods")["items"]]


def test_pods_run_are_deleted_and_survive_a_restart_of_the_kubelet(client: ApiClient) -> None:
    with node(client) as n:
        n.plug(count=50)
        wait_for(lambda: client.get("/api/v1/nodes/n1")["status"]["allocatable"].get(CORE) == "50")
        for index in range(10):
            client.create(_PODS, a_pod(f"p{index}"))
        wait_for(lambda: phases(client) == ["Running"] * 10)
        client.delete(f"{_PODS}/p1")
        wait_for(lambda: len(phases(client)) == 9)
        n.kubelet.restart()
        n.replug()
        wait_for(lambda: len(n.kubelet.record()) == 9)
        manifest = a_pod("static")
        n.kubelet.add_static_pod(manifest)
        wait_for(lambda: phases(client) == ["Running"] * 10)
        assert len({id_ for held in n.kubelet.record() for id_ in held.ids}) == 20
