"""The kubelet and an API server: reads, statuses, deletions and outages."""

import threading
from collections.abc import Iterator

import pytest

from simulator.api.faults import Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from tests.agent.fakes import DEADLINE_S
from tests.simulator.api_helpers import PODS
from tests.simulator.kubelet_helpers import CORE, Call, Node, container, node, pod, wait_for


@pytest.fixture
def n(server: ApiServer) -> Iterator[Node]:
    with ApiClient(server.url) as own, node(own) as running:
        running.plug(count=10)
        yield running


def status(client: ApiClient, name: str) -> Json:
    """The status of a pod; empty when there is no such pod."""
    pods = {each["metadata"]["name"]: each for each in client.list(PODS)["items"]}
    return pods.get(name, {}).get("status") or {}


def create(client: ApiClient, name: str, *containers: Json, **fields: object) -> Json:
    """Create a pod that is bound already."""
    return client.create(PODS, pod(name, *containers, nodeName="n1", **fields))  # type: ignore[arg-type]


def runs(client: ApiClient, name: str) -> None:
    wait_for(lambda: status(client, name).get("phase") == "Running", what=name)


def test_a_node_shows_what_its_plugins_offer(client: ApiClient, n: Node) -> None:
    def shown() -> list[str | None]:
        found = client.get("/api/v1/nodes/n1").get("status", {})
        return [found.get(key, {}).get(CORE) for key in ("capacity", "allocatable")]

    wait_for(lambda: shown() == ["10", "10"])
    n.plugins[CORE].stop()
    wait_for(lambda: shown() == ["10", "0"])


def test_a_pod_that_finishes_succeeds_and_frees_its_devices(client: ApiClient, n: Node) -> None:
    sidecar = container("s", restart="Always")
    notes = {"simulator/run-seconds": "0.05"}
    create(client, "p", container("c", 10), init=(sidecar,), annotations=notes)
    wait_for(lambda: status(client, "p").get("phase") == "Succeeded")
    create(client, "q", container("c", 10))
    runs(client, "q")
    client.delete(f"{PODS}/q")
    wait_for(lambda: not status(client, "q"))


def test_an_outage_of_the_api_server_delays_statuses_and_loses_none(
    server: ApiServer, client: ApiClient, n: Node
) -> None:
    in_flight, go_on = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        in_flight.set()
        assert go_on.wait(DEADLINE_S)

    n.plugins[CORE].on_allocate = hold
    p = create(client, "p", container("c", 1))
    assert in_flight.wait(DEADLINE_S)
    server.set_outage(Outage.UNAVAILABLE)
    go_on.set()
    n.wait_running(p)
    server.expire_history()
    server.set_outage(Outage.NONE)
    runs(client, "p")
    create(client, "q", container("c", 1))
    runs(client, "q")
