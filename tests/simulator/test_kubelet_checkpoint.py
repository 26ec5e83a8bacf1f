"""The checkpoint file: its form, and when the simulated kubelet writes it (K27 to K34)."""

import json
from functools import reduce

from common.kubelet_api import CHECKPOINT_FILE
from simulator.kubelet.checkpoint import decode, encode
from simulator.kubelet.numa import DeviceAllocation
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.state import KubeletCheckpoint
from simulator.kubelet.staticpods import mirror_of
from tests.simulator.kubelet_helpers import (
    CORE,
    MEMORY,
    Node,
    container,
    node,
    pod,
    refuse,
    wait_for,
)


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
