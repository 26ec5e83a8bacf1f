from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.api.faults import Outage
from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from simulator.scheduler.fit import fitting_nodes, pod_requests
from simulator.scheduler.scheduler import Scheduler
from tests.simulator.api_helpers import CORE, PODS, eventually, node, pod

Start = Callable[..., Scheduler]


def asking(count: int, *, sidecar: bool = False) -> Json:
    container: Json = {"name": "c", "resources": {"limits": {CORE: str(count)}}}
    return container | ({"restartPolicy": "Always"} if sidecar else {})


def shaped(init: list[Json], main: list[Json]) -> Json:
    return {"metadata": {"name": "p"}, "spec": {"initContainers": init, "containers": main}}


@given(
    init=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5),
    main=st.lists(st.integers(0, 9), max_size=4),
)
def test_the_need_is_the_peak_of_a_simulated_run(
    init: list[tuple[int, bool]], main: list[int]
) -> None:
    running, peak = 0, 0
    for count, sidecar in init:
        peak = max(peak, running + count)
        running += count if sidecar else 0
    peak = max(peak, running + sum(main))
    made = shaped([asking(c, sidecar=s) for c, s in init], [asking(c) for c in main])
    assert pod_requests(made)[CORE] == peak


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"status": {"allocatable": {CORE: "39"}}}, False),
        ({"status": {"allocatable": {}}}, False),
        ({"status": {}}, False),
        ({"spec": {"unschedulable": True}}, False),
    ],
)
def test_a_node_needs_room(changes: Json, fits: bool) -> None:
    candidate = node(core="40") | changes
    assert fitting_nodes(pod(limits={CORE: "40"}), [candidate], {}) == (["n1"] if fits else [])


@pytest.fixture
def start(client: ApiClient) -> Iterator[Start]:
    running: list[Scheduler] = []

    def start_one(**options: Any) -> Scheduler:
        scheduler = Scheduler(client, **{"max_delay": 0.01, **options})
        scheduler.start()
        running.append(scheduler)
        return scheduler

    yield start_one
    for scheduler in running:
        scheduler.stop()


def bound(client: ApiClient) -> dict[str, str]:
    pods = client.list("/api/v1/pods")["items"]
    return {
        each["metadata"]["name"]: each["spec"]["nodeName"]
        for each in pods
        if each["spec"].get("nodeName")
    }


def test_a_node_is_never_overbooked(server: ApiServer, client: ApiClient, start: Start) -> None:
    server.apply(node(core=100))
    start(workers=8, max_delay=0.05)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(
            lambda i: client.create(PODS, pod(f"p{i}", limits={CORE: "30"})), range(10)
        ):
            pass
    eventually(lambda: len(bound(client)) == 3, "what fits is bound")
    # one more only when one has ended
    first = min(bound(client))
    client.patch(f"{PODS}/{first}/status", {"status": {"phase": "Succeeded"}})
    eventually(lambda: len(bound(client)) == 4, "room is taken again")
    client.delete(f"{PODS}/{max(bound(client))}", grace_period_seconds=0)
    eventually(lambda: len(bound(client)) == 4, "and again")


@pytest.mark.parametrize("outage", [Outage.REFUSED, Outage.UNAVAILABLE])
def test_an_outage_is_survived(
    server: ApiServer, client: ApiClient, start: Start, outage: Outage
) -> None:
    server.apply(node())
    start(max_delay=0.1)
    for number in range(10):
        client.create(PODS, pod(f"p{number}"))
    server.set_outage(outage)
    server.expire_history()
    server.set_outage(Outage.NONE)
    client.create(PODS, pod("late"))
    eventually(lambda: len(bound(client)) == 11, "all bound")
