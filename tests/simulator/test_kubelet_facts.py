"""The facts of docs/kubelet-facts.md, held by the simulated kubelet over real sockets."""

import json
import threading
from functools import reduce
from typing import Any, cast

import grpc
import pytest

from common.kubelet_api import CHECKPOINT_FILE
from simulator.kubelet.checkpoint import decode, encode
from simulator.kubelet.numa import DeviceAllocation
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.state import KubeletCheckpoint
from simulator.kubelet.staticpods import mirror_of
from tests.simulator.kubelet_helpers import (
    CORE,
    MEMORY,
    Call,
    FakePlugin,
    Node,
    container,
    node,
    pod,
    refuse,
    wait_for,
)

FAST: dict[str, Any] = {"list_rate": 1e6, "list_burst": 10**6}


NEVER = (3600.0, 3600.0)
"""Seconds until a deleted pod ends, unless :func:`end` ends it."""


def end(n: Node, obj: dict[str, Any]) -> None:
    """Let the containers of a pod that is being deleted end now."""
    for each in obj["spec"]["containers"]:
        n.kubelet.instance.workers.restart(obj["metadata"]["uid"], each["name"])


def test_k1_pods_are_admitted_one_at_a_time_and_init_containers_first(n: Node) -> None:
    n.plug(count=100)
    n.plug(MEMORY, count=100)
    pods = [
        pod(
            f"p{index}",
            container("c", 1, 1),
            container("d", 1, 1),
            init=(container("i", 1, 1), container("s", 1, 1, restart="Always")),
        )
        for index in range(8)
    ]
    n.admit(*pods)
    calls = [(each.pod, each.container) for each in n.kubelet.trace.rpcs("Allocate")]
    in_order = list(dict.fromkeys(calls))
    assert len(in_order) == 32
    assert [name for _, name in in_order] == ["i", "s", "c", "d"] * 8
    assert calls == [each for each in in_order for _ in range(2)]
    assert len({each for each, _ in in_order}) == 8


def test_k1_a_batch_of_one_second_comes_in_any_order_but_older_ones_first() -> None:
    with node(seed=3) as n:
        n.plug(count=100)
        young = [pod(f"y{index}", container("c", 1)) for index in range(10)]
        old = [pod(f"o{i}", container("c", 1), created="2025-01-01T00:00:00Z") for i in range(3)]
        n.admit(*young, *old)
        names = [each.pod for each in n.kubelet.trace.rpcs("Allocate")]
        assert {*names[:3]} == {"o0", "o1", "o2"}
        assert names[3:] != [f"y{index}" for index in range(10)]


def test_k2_a_preferred_call_with_the_size_then_allocate_of_what_was_preferred(n: Node) -> None:
    plugin = n.plug(count=10)
    plugin.on_prefer = lambda call: ["core-00007", "core-00003"]
    n.admit(pod("p", container("c", 2)))
    prefer, allocate = plugin.calls[:2]
    assert (prefer.rpc, len(prefer.available), prefer.size) == ("GetPreferredAllocation", 10, 2)
    assert (allocate.rpc, set(allocate.ids)) == ("Allocate", {"core-00003", "core-00007"})


def test_k2_with_a_topology_hint_only_that_node_is_offered_and_an_exact_fit_needs_no_call() -> None:
    with node(numa_hint=lambda uid, name: {1}) as n:
        plugin = n.plug(count=8, numa=lambda index: (index // 4,))
        n.admit(pod("p", container("c", 2)))
        assert set(plugin.calls[0].available) == {f"core-0000{index}" for index in range(4, 8)}
        n.admit(pod("q", container("c", 2)))
        assert len(plugin.of("GetPreferredAllocation")) == 1
        assert len(plugin.of("Allocate")) == 2


def test_k2_a_plugin_that_wants_neither_preference_nor_prestart_gets_neither(n: Node) -> None:
    plugin = n.plug(preferred=False, pre_start=False)
    p = pod("p", container("c", 2))
    n.admit(p)
    n.wait_running(p)
    assert [call.rpc for call in plugin.calls] == ["Allocate"]


def test_k3_list_shows_the_pod_being_admitted_and_only_that_one_lacks() -> None:
    with node(**FAST) as n:
        seen: list[set[str]] = []  # the pods with a container that lacks the call's resource

        for resource in (CORE, MEMORY):

            def observe(call: Call, resource: str = resource) -> list[str]:
                held = {name: list(found.values()) for name, found in n.list().items()}
                seen.append({name for name in held if not all(resource in h for h in held[name])})
                return []

            plugin = n.plug(resource, count=100)
            plugin.on_prefer = plugin.on_allocate = observe
        pods = [pod(f"p{i}", container("c", 1, 2), container("d", 2, 1)) for i in range(10)]
        n.admit(*pods)
        assert len(seen) == 80
        rpcs = [each for each in n.kubelet.trace.rpcs() if each.rpc != "PreStartContainer"]
        assert seen == [{each.pod} for each in rpcs]


def test_k4_ordinary_init_containers_are_not_listed_and_sidecars_are(n: Node) -> None:
    n.plug()
    p = pod("p", container("c", 1), init=(container("i", 2), container("s", 1, restart="Always")))
    n.admit(p)
    assert n.list() == {"p": {"s": {CORE: 1}, "c": {CORE: 1}}}
    assert len(n.held(p, "i")) == 2


def test_k5_list_is_rate_limited_in_the_kubelets_words() -> None:
    with node(list_rate=0.001) as n:
        for _ in range(10):
            n.list()
        with pytest.raises(grpc.RpcError) as caught:
            n.list()
        error = cast(grpc.Call, caught.value)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "rejected by rate limit"


def test_k10_a_vetoed_start_waits_with_the_reason_and_is_tried_again(n: Node) -> None:
    plugin = n.plug()
    plugin.on_pre_start = lambda call: refuse("VETO")
    p = pod("p", container("c", 1))
    n.admit(p)
    wait_for(lambda: len(plugin.of("PreStartContainer")) >= 2)
    status = n.kubelet.status(p["metadata"]["uid"])
    assert status is not None
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": "device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = FailedPrecondition desc = VETO",
    }
    plugin.on_pre_start = lambda call: None
    n.wait_running(p)
    assert n.kubelet.received(p["metadata"]["uid"], "c")["envs"]["CORE"] == "core-00000"


def test_k11_a_restart_removes_sockets_and_shows_running_containers_with_nothing_allocatable(
    n: Node,
) -> None:
    plugin = n.plug()
    p = pod("p", container("c", 2))
    n.admit(p)
    n.wait_running(p)
    held = n.held(p, "c")
    n.kubelet.restart()
    assert not (n.settings.plugin_dir / plugin.endpoint).exists()
    assert (n.settings.plugin_dir / "kubelet.sock").exists()
    assert n.kubelet.capacity() == ({CORE: 0}, {CORE: 0})
    n.admit(p)
    assert n.list() == {"p": {"c": {CORE: 2}}}
    n.replug()
    q = pod("q", container("c", 1))
    n.admit(q)
    assert not set(n.held(q, "c")) & set(held)
    assert n.held(p, "c") == held
    assert len(plugin.of("Allocate")) == 2
    assert (p["metadata"]["uid"], "c") in n.kubelet.running()


def test_k16_one_entry_for_each_device(n: Node) -> None:
    n.plug()
    n.admit(pod("p", container("c", 3)))
    [listed] = n.list_raw().pod_resources
    [only] = listed.containers
    assert [len(each.device_ids) for each in only.devices] == [1, 1, 1]


def beside(n: Node, old: FakePlugin, count: int = 7) -> FakePlugin:
    """Serve and register a second plugin under a socket name of its own, as a successor does."""
    new = FakePlugin(n.settings.plugin_dir, old.resource, count)
    new.endpoint = "second.sock"
    n.plugins["second"] = new.serve()
    new.register()
    n.wait_healthy(old.resource, count)
    return new


def test_k18_the_end_of_an_old_stream_drops_whoever_is_registered_then(n: Node) -> None:
    old = n.plug(count=5)
    new = beside(n, old)
    old.stop()
    wait_for(lambda: n.kubelet.capacity() == ({CORE: 7}, {CORE: 0}))
    # The stream that was just cut is of the same name: its own end may drop the next one, too.
    wait_for(lambda: all(each.name != f"watch-{CORE}" for each in threading.enumerate()))
    new.register()
    n.wait_healthy(CORE, 7)
    p = pod("p", container("c", 1))
    n.admit(p)
    assert [call.rpc for call in new.calls[:2]] == ["GetPreferredAllocation", "Allocate"]


@pytest.mark.parametrize("active_pods_only", [True, False])
def test_k20_a_force_deleted_pod_stays_in_the_list_until_its_containers_have_ended(
    active_pods_only: bool,
) -> None:
    with node(active_pods_only=active_pods_only, grace_s=NEVER, **FAST) as n:
        n.plug(count=2)
        p = pod("p", container("gpu", 2), container("plain"))
        n.admit(p)
        n.wait_running(p)
        n.kubelet.remove_pods(p)
        n.wait_idle()
        assert n.list() == {"p": {"gpu": {CORE: 2}, "plain": {}}}
        n.admit(q := pod("q", container("c", 1)))
        assert "Requested: 1, Available: 0" in n.message(q)[1]
        end(n, p)
        wait_for(lambda: "p" not in n.list())
        n.admit(pod("r", container("c", 2)))
        assert n.list()["r"] == {"c": {CORE: 2}}


def test_k26_a_second_registration_replaces_the_endpoint_without_a_gap(n: Node) -> None:
    old = n.plug(count=5)
    seen: list[int | None] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(n.kubelet.capacity()[1].get(CORE))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        new = beside(n, old)
    finally:
        done.set()
        thread.join()
    assert set(seen) <= {5, 7}
    before = len(old.calls)
    n.admit(p := pod("p", container("c", 1)))
    n.wait_running(p)
    assert [call.rpc for call in new.calls] == [
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ]
    assert len(old.calls) == before


# --- the checkpoint file ----------------------------------------------------------------------


def test_the_checksum_is_over_what_the_kubelet_prints_of_its_structures() -> None:
    """So computed it was that of every file of a real kubelet of 1.36.2, the empty one too."""
    holding = DeviceAllocation(
        ("b", "a"), PluginResponse(cdi_devices=[{"name": "x"}]), {1: ("b",), -1: ("a",)}
    )
    found = encode(
        KubeletCheckpoint({"u": {"c": {"example.com/r": holding}}}, {"example.com/r": ("a",)})
    )
    printed = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)["
        "{PodUID:(string)u ContainerName:(string)c ResourceName:(string)example.com/r "
        "DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[a] 1:[b]] "
        "AllocResp:([]uint8)[42 3 10 1 120]}] "
        "RegisteredDevices:(map[string][]string)map[example.com/r:[a]]}"
    )
    assert json.loads(found)["Checksum"] == fnv1a(printed)
    assert json.loads(encode(KubeletCheckpoint({}, {})))["Checksum"] == fnv1a(
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> "
        "RegisteredDevices:(map[string][]string)map[]}"
    )


def fnv1a(text: str) -> int:
    return reduce(lambda found, byte: (found ^ byte) * 16777619 % 2**32, text.encode(), 2166136261)


def read(n: Node) -> KubeletCheckpoint:
    return decode((n.settings.plugin_dir / CHECKPOINT_FILE).read_text(encoding="utf-8"))


def identity(n: Node) -> tuple[int, int]:
    """Changes with every write: the file is another one each time."""
    status = (n.settings.plugin_dir / CHECKPOINT_FILE).stat()
    return status.st_ino, status.st_mtime_ns


def test_k27_the_file_comes_with_the_first_list_of_devices_and_is_empty_as_null(n: Node) -> None:
    path = n.settings.plugin_dir / CHECKPOINT_FILE
    assert not path.exists()
    n.plug()
    wait_for(path.exists)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["Data"]["PodDeviceEntries"] is None


def test_k27_each_write_is_a_new_file_and_leaves_nothing_beside_it(n: Node) -> None:
    n.plug()
    n.admit(pod("p", container("c", 1)))
    before = identity(n)
    with (n.settings.plugin_dir / CHECKPOINT_FILE).open(encoding="utf-8") as old:
        n.admit(pod("q", container("c", 1)))
        assert identity(n) != before
        assert len(decode(old.read()).pods) == 1
    assert {each.name for each in n.settings.plugin_dir.iterdir() if each.is_file()} == {
        CHECKPOINT_FILE
    }


def test_k28_no_write_for_a_refusal_a_list_a_start_or_the_end_of_a_pod(n: Node) -> None:
    plugin = n.plug()
    p = pod("p", container("c", 1))
    wait_for((n.settings.plugin_dir / CHECKPOINT_FILE).exists)
    before = identity(n)
    writes = {before}
    plugin.on_pre_start = lambda call: writes.add(identity(n))
    n.admit(p)
    n.wait_running(p)
    assert len(writes) == 2  # once, before the start
    after = identity(n)
    plugin.on_allocate = lambda call: refuse("no")
    n.admit(pod("refused", container("c", 1)))
    p["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    n.kubelet.add_pods(p)
    wait_for(lambda: not n.list())
    assert identity(n) == after


def test_k28_a_plugin_disconnected_for_long_is_removed_from_the_file() -> None:
    with node(endpoint_grace_s=0.2) as n:
        n.plug().stop()
        wait_for(lambda: n.kubelet.capacity() == ({}, {}))
        assert read(n).registered == {}


def test_k29_an_ended_pod_stays_until_the_next_write_with_what_another_gets(n: Node) -> None:
    plugin = n.plug(count=1)
    p, q = pod("p", container("c", 1)), pod("q", container("c", 1))
    n.admit(p)
    n.wait_running(p)
    p["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    n.kubelet.add_pods(p)
    wait_for(lambda: not n.list())
    seen: list[set[str]] = []
    plugin.on_allocate = lambda call: seen.append(set(read(n).pods))
    n.admit(q)
    assert seen == [{p["metadata"]["uid"]}]
    assert plugin.of("Allocate")[0].ids == plugin.of("Allocate")[1].ids
    assert set(read(n).pods) == {q["metadata"]["uid"]}


def test_k32_device_ids_stand_by_numa_node(n: Node) -> None:
    n.plug(count=2, numa=lambda index: (index,))
    n.plug(MEMORY, count=1)
    p = pod("p", container("c", 2, 1))
    n.admit(p)
    data = json.loads((n.settings.plugin_dir / CHECKPOINT_FILE).read_text())["Data"]
    assert {each["ResourceName"]: each["DeviceIDs"] for each in data["PodDeviceEntries"]} == {
        CORE: {"0": ["core-00000"], "1": ["core-00001"]},
        MEMORY: {"-1": ["memory-00000"]},
    }


def test_k34_the_uid_of_a_static_pod_is_not_that_of_its_mirror(n: Node) -> None:
    n.plug()
    manifest = pod("static", container("c", 1))
    del manifest["metadata"]["uid"]
    uid = n.kubelet.add_static_pod(manifest)
    n.wait_idle()
    assert len(uid) == 32  # a hash of its configuration, no UUID
    assert set(read(n).pods) == {uid}
    [static] = n.kubelet.instance.pods()
    shown = mirror_of(static)["metadata"]
    assert "uid" not in shown  # the API server gives it one
    assert shown["annotations"]["kubernetes.io/config.hash"] == uid
