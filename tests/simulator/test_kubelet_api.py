"""The kubelet and an API server: what it reads, what it says, and who outlives whom."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from simulator.client import Json
from simulator.kubelet.pods import MIRROR
from tests.simulator.kubelet_helpers import (
    CORE,
    Call,
    FakeApi,
    Node,
    Refuse,
    container,
    node,
    pod,
    wait_for,
)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def n(api: FakeApi) -> Iterator[Node]:
    with node(api, plugin_wait_s=20.0) as running:
        running.plug(count=10)
        wait_for(lambda: shown(api) == {"capacity": "10", "allocatable": "10"})
        yield running


def shown(api: FakeApi) -> dict[str, Any]:
    status = api.nodes.get("n1", {}).get("status", {})
    return {key: status.get(key, {}).get(CORE) for key in ("capacity", "allocatable")}


def status(api: FakeApi, name: str) -> Json:
    found: Json = api.pods.get(f"default/{name}", {}).get("status", {})
    return found


def test_a_refused_pod_fails_with_the_plugins_words(api: FakeApi, n: Node) -> None:
    def refuse(call: Call) -> None:
        raise Refuse("TEXT")

    n.plugins[CORE].on_allocate = refuse
    api.put(pod("p", container("c", 1)))
    wait_for(lambda: status(api, "p").get("phase") == "Failed")
    assert status(api, "p")["reason"] == "UnexpectedAdmissionError"
    assert "desc = TEXT, which is unexpected" in status(api, "p")["message"]
    api.mark_deleted("default/p")
    wait_for(lambda: "default/p" not in api.pods)


def test_a_pod_that_finishes_succeeds_and_frees_its_devices(api: FakeApi, n: Node) -> None:
    api.put(
        pod(
            "p",
            container("c", 10),
            init=(container("s", restart="Always"),),
            annotations={"simulator/run-seconds": "0.05"},
        )
    )
    wait_for(lambda: status(api, "p").get("phase") == "Succeeded")
    api.put(pod("q", container("c", 10)))
    wait_for(lambda: status(api, "q").get("phase") == "Running")
    api.mark_deleted("default/p")
    wait_for(lambda: "default/p" not in api.pods)


def test_a_namesake_created_at_once_is_another_pod(api: FakeApi, n: Node) -> None:
    first = api.put(pod("p", container("c", 1)))
    wait_for(lambda: status(api, "p").get("phase") == "Running")
    api.force_delete("default/p")
    second = api.put(pod("p", container("c", 2)))
    wait_for(lambda: status(api, "p").get("phase") == "Running")
    wait_for(lambda: {uid for uid, _ in n.kubelet.running()} == {second["metadata"]["uid"]})
    assert len(n.held(second, "c")) == 2
    assert n.held(first, "c") == ()


def test_a_pod_deleted_while_it_is_admitted_ends_after_it(api: FakeApi, n: Node) -> None:
    in_flight, go_on = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        in_flight.set()
        assert go_on.wait(20)

    n.plugins[CORE].on_allocate = hold
    api.put(pod("p", container("c", 1)))
    assert in_flight.wait(20)
    api.mark_deleted("default/p")
    go_on.set()
    wait_for(lambda: "default/p" not in api.pods)
    wait_for(lambda: n.kubelet.record() == ())


def test_an_outage_of_the_api_server_delays_what_is_said_and_loses_nothing(
    api: FakeApi, n: Node
) -> None:
    in_flight, go_on = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        in_flight.set()
        assert go_on.wait(20)

    n.plugins[CORE].on_allocate = hold
    p = api.put(pod("p", container("c", 1)))
    assert in_flight.wait(20)
    api.down = True
    api.break_watches()
    go_on.set()
    n.wait_running(p)
    assert not status(api, "p").get("containerStatuses")
    api.down = False
    wait_for(lambda: status(api, "p").get("phase") == "Running")
    api.put(pod("q", container("c", 1)))
    wait_for(lambda: status(api, "q").get("phase") == "Running")


def test_a_restart_finds_its_pods_again_and_starts_nothing_twice(api: FakeApi, n: Node) -> None:
    pods = [api.put(pod(f"p{index}", container("c", 1))) for index in range(5)]
    n.wait_running(*pods)
    held = [n.held(each, "c") for each in pods]
    api.mark_deleted("default/p0")
    n.kubelet.restart()
    n.replug()
    wait_for(lambda: "default/p0" not in api.pods)
    late = api.put(pod("late", container("c", 1)))
    n.wait_running(late, *pods[1:])
    assert [n.held(each, "c") for each in pods[1:]] == held[1:]
    assert n.held(late, "c")[0] not in {id_ for each in held[1:] for id_ in each}
    starts = [each.pod for each in n.kubelet.trace.events if each.event == "start"]
    assert sorted(starts) == ["late", "p0", "p1", "p2", "p3", "p4"]


STATIC: Json = {"metadata": {"name": "s"}, "spec": {"containers": [container("c", 1)]}}


def test_a_static_pod_is_shown_by_a_mirror_with_its_status(api: FakeApi, n: Node) -> None:
    uid = n.kubelet.add_static_pod(STATIC)
    wait_for(lambda: status(api, "s-n1").get("phase") == "Running")
    mirror = api.pods["default/s-n1"]["metadata"]
    assert mirror["annotations"][MIRROR] == uid != mirror["uid"]
    assert [each.pod_uid for each in n.kubelet.record()] == [uid]
    n.kubelet.restart()
    n.replug()
    wait_for(lambda: [each.pod_uid for each in n.kubelet.record()] == [uid])
    n.kubelet.remove_static_pod(uid)
    wait_for(lambda: n.kubelet.record() == ())


@pytest.mark.parametrize("mirror", ["late", "never"])
def test_a_mirror_can_be_late_or_never_come(api: FakeApi, mirror: Any) -> None:
    with node(api, mirror_delay_s=1.0) as n:
        n.plug()
        uid = n.kubelet.add_static_pod(STATIC, mirror=mirror)
        wait_for(lambda: (uid, "c") in n.kubelet.running())
        assert "s-n1" in n.list()
        assert "default/s-n1" not in api.pods
        if mirror == "late":
            wait_for(lambda: status(api, "s-n1").get("phase") == "Running")


@pytest.mark.parametrize("moment", ["idle", "admitting", "starting"])
def test_stopping_is_prompt_whatever_goes_on(api: FakeApi, n: Node, moment: str) -> None:
    reached, release = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        reached.set()
        release.wait(20)

    if moment == "admitting":
        n.plugins[CORE].on_allocate = hold
    if moment == "starting":
        n.plugins[CORE].on_pre_start = hold
    if moment != "idle":
        api.put(pod("p", container("c", 1)))
        assert reached.wait(20)
    began = time.monotonic()
    n.kubelet.stop()
    assert time.monotonic() - began < 2
    release.set()
    assert status(api, "p").get("phase") in (None, "Pending")
