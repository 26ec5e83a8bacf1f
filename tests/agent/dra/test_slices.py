"""The devices of ResourceSlices; when slices and counts are written, and when not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.slots import DeviceTable
from agent.cards.pci import pcie_root
from agent.dra.counts import NodeCounts
from agent.dra.devices import devices_of, published, slices_of
from agent.dra.slices import SlicePublisher
from agent.kubernetes_api.client import Api, Rejected
from contract.inventory import Card, Inventory
from contract.quantity import format_quantity, parse_quantity
from simulator.api.quantities import canonical
from tests.agent.builders import BLOCK, card, cases, patient
from tests.agent.fakes import FakeClock

DEVICES = [{"name": "gpu-0", "allowMultipleAllocations": True}]


class FakeCluster:
    """An API server that keeps what is written, or drops the fields of a feature gate."""

    def __init__(self, *, drops: bool = False, is_listed: bool = True) -> None:
        self.drops = drops
        self.requests: list[str] = []
        self.slices: dict[str, Any] = {}
        self.devices = DEVICES
        self.clock = FakeClock()
        self.error: Exception | None = None
        self.refused: list[str] = []
        self.late: list[tuple[str, Any]] = []
        self.is_late = False
        self.publisher = SlicePublisher(
            api=cast(Api, self),
            node="n1",
            driver="d",
            specs=lambda: slices_of(self.devices, driver="d", node="n1"),
            clock=self.clock,
        )
        if is_listed:
            self.publisher.slices.collection.list()

    def get_node(self, name: str) -> Any:
        return {"metadata": {"uid": "u-n1"}}

    def create_slice(self, body: Any) -> None:
        self._check(body["metadata"]["name"], exists=False)
        self._store("create", body)

    def patch_slice(self, name: str, patch: Any) -> None:
        self._check(name)
        self._store("patch", patch)

    def delete_slice(self, name: str) -> None:
        self._check(name)
        self.requests.append("delete")
        self._show("DELETED", self.slices.pop(name))

    def _check(self, name: str, *, exists: bool = True) -> None:
        if name in self.refused:
            self.refused.remove(name)
            raise Rejected(429, "too many requests")
        if (name in self.slices) != exists:
            raise Rejected(404 if exists else 409, "it does not exist, or it does")

    def _show(self, kind: str, obj: Any) -> None:
        self.late.append((kind, obj))
        if not self.is_late:
            self.catch_up()

    def catch_up(self) -> None:
        self.is_late = False
        while self.late:
            self.publisher.slices.collection.apply(*self.late.pop(0))

    def delete_by_hand(self, at: int) -> None:
        for name in sorted(self.slices)[at : at + 1]:
            self._show("DELETED", self.slices.pop(name))

    def patch_node_status(self, name: str, patch: Any) -> None:
        self.requests.append(json.dumps(patch["status"], sort_keys=True))
        if self.error is not None:
            raise self.error

    def _store(self, verb: str, body: Any) -> None:
        self.requests.append(verb)
        stored = json.loads(json.dumps(body))
        for each in stored["spec"]["devices"] if self.drops else ():
            del each["allowMultipleAllocations"]
        self.slices[stored["metadata"]["name"]] = stored
        self._show("ADDED", stored)

    def list(self, *_: object) -> tuple[list[Any], str, str]:
        return [*self.slices.values()], "1", ""

    def write(self) -> None:
        while (pause := self.publisher.pause()) is not None and pause <= 0:
            self.publisher.write_next()


def test_a_slice_is_written_once_the_slices_are_listed_and_again_when_it_changes() -> None:
    cluster = FakeCluster(is_listed=False)
    cluster.publisher.poke()
    cluster.write()
    assert cluster.requests == []
    cluster.publisher.slices.collection.list()
    for _ in range(2):
        cluster.write()
        cluster.publisher.poke()
    assert cluster.requests == ["create"]
    cluster.devices = [*DEVICES, {"name": "gpu-1"}]
    cluster.publisher.poke()
    cluster.write()
    assert cluster.requests == ["create", "patch"]
    assert cluster.slices["n1-d"]["spec"]["pool"]["generation"] == 2


def test_a_slice_whose_fields_are_dropped_is_written_every_ten_seconds() -> None:
    cluster = FakeCluster(drops=True)
    cluster.write()
    cluster.write()
    assert cluster.requests == ["create"]
    cluster.clock.now += 10
    cluster.write()
    assert cluster.requests == ["create", "patch"]


def test_all_slices_of_a_pool_have_one_generation_after_a_write_that_failed_between_two() -> None:
    """A scheduler takes a pool whose newest generation lacks a slice for incomplete."""
    cluster = FakeCluster()
    cluster.devices = [{"name": f"gpu-{at}"} for at in range(65)]
    cluster.write()
    cluster.devices = [{"name": "gpu-0", "taints": []}, *cluster.devices[1:]]
    cluster.refused = ["n1-d-1"]
    cluster.publisher.poke()
    cluster.write()
    cluster.clock.now += 10
    cluster.write()
    pools = [each["spec"]["pool"]["generation"] for each in cluster.slices.values()]
    assert len(pools) == 2
    assert len(set(pools)) == 1


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["devices", "refuse", "delete", "lag", "catch up", "write", "later"]),
        st.integers(0, 2),
    ),
    max_size=20,
)


@patient
@given(_STEPS)
def test_slices_are_right_in_the_end_and_of_one_generation(steps: list[tuple[str, int]]) -> None:
    cluster = FakeCluster()
    for number, (step, at) in enumerate(steps):
        if step == "devices":
            count = at * 64 + 1
            cluster.devices = [{"name": f"gpu-{each}", "of": number // 3} for each in range(count)]
            cluster.publisher.poke()
        elif step == "refuse":
            cluster.refused.append("n1-d" + f"-{at}" * (at > 0))
        elif step == "delete":
            cluster.delete_by_hand(at)
        elif step == "lag":
            cluster.is_late = True
        elif step == "catch up":
            cluster.catch_up()
        elif step == "later":
            cluster.clock.now += 5
        else:
            cluster.write()
    cluster.refused.clear()
    cluster.catch_up()
    for _ in range(4):
        cluster.write()
        cluster.clock.now += 30
    wanted = slices_of(cluster.devices, driver="d", node="n1")
    assert {name: published(each["spec"]) for name, each in cluster.slices.items()} == wanted
    assert len({each["spec"]["pool"]["generation"] for each in cluster.slices.values()}) == 1


WANTED = {"capacity": {"a.b/c": 1000}, "allocatable": {"a.b/c": 900}}
WRITTEN = '{"allocatable": {"a.b/c": "900"}, "capacity": {"a.b/c": "1k"}}'
BOTH = {"capacity": {"a.b/c": "1k", "cpu": "4"}, "allocatable": {"a.b/c": "900"}}
KNOWN = json.dumps({"Data": {"RegisteredDevices": {"a.b/c": ["x"]}}})
OTHERS = json.dumps({"Data": {"RegisteredDevices": {"other/c": ["x"]}}})


def counts_of(cluster: FakeCluster, folder: Path) -> NodeCounts:
    api = cast(Api, cluster)
    return NodeCounts(api=api, node="n1", kubelet_dir=folder, counts=lambda: WANTED)


@cases(
    "checkpoint, status, requests, problem",
    {
        "no checkpoint": (None, {}, [WRITTEN], ""),
        "another plugin": (OTHERS, {}, [WRITTEN], ""),
        "as wanted": (None, BOTH, [], ""),
        "set to 0": (None, {**BOTH, "allocatable": {"a.b/c": "0"}}, [WRITTEN], ""),
        "not forgotten": (KNOWN, {}, [], "the kubelet has not forgotten the device plugin yet"),
        "unreadable": ("{", {}, [], "the kubelet's device plugin checkpoint cannot be read"),
    },
)
def test_counts_are_written_only_if_the_kubelet_does_not_know_a_plugin(
    tmp_path: Path, checkpoint: str | None, status: Any, requests: list[str], problem: str
) -> None:
    if checkpoint is not None:
        (tmp_path / "kubelet_internal_checkpoint").write_text(checkpoint)
    cluster = FakeCluster()
    counts = counts_of(cluster, tmp_path)
    counts.update({"status": status})
    assert cluster.requests == requests
    assert counts.problem.startswith(problem)
    assert bool(counts.problem) == bool(problem)


def test_counts_that_cannot_be_written_are_a_problem_until_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster()
    counts = counts_of(cluster, tmp_path)
    cluster.error = Rejected(403, "no")
    counts.update({})
    counts.update({})
    assert [each.message for each in caplog.records] == ["counts not written"]
    assert counts.problem == "the counts in the node's status cannot be written: no"
    cluster.error = None
    counts.update({})
    assert counts.problem == ""


def devices(
    *cards: Card, driver: str = "580.65.06", pcie: str = "pci0000:00", **unhealthy: str
) -> list[dict[str, Any]]:
    """The devices of cards; the second one is cordoned."""
    return devices_of(
        DeviceTable(Inventory(cards), BLOCK),
        domain="tencent.com",
        driver_version=driver,
        unhealthy=lambda uuid: unhealthy.get(uuid.replace("-", ""), ""),
        cordoned={"GPU-1"},
        pcie_root=lambda _bus: pcie,
    )


def test_a_card_is_a_shared_device_with_two_capacities() -> None:
    one = replace(card(3, blocks=1000), model="NVIDIA L4", numa=1)
    assert devices(one) == [
        {
            "name": "gpu-3",
            "allowMultipleAllocations": True,
            "attributes": {
                "uuid": {"string": "GPU-3"},
                "model": {"string": "nvidia l4"},
                "index": {"int": 3},
                "numa": {"int": 1},
                "driverVersion": {"string": "580.65.06"},
                "memoryBlock": {"int": BLOCK},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            "capacity": {
                name: {
                    "value": text,
                    "requestPolicy": {
                        "default": "1",
                        "validRange": {"min": "1", "max": text, "step": "1"},
                    },
                }
                for name, text in (("cores", "100"), ("memory", "1k"))
            },
        }
    ]


def test_long_attributes_are_cut_and_unknown_ones_left_out() -> None:
    """The API server refuses longer attributes, and with them the whole slice."""
    one = replace(card(0), model="N" * 70, bus_id="")
    (found,) = devices(one, driver="", pcie="", GPU0="x" * 62 + ". fault")
    assert found["attributes"].keys() == {"uuid", "model", "index", "memoryBlock"}
    assert found["attributes"]["model"] == {"string": "n" * 64}
    assert found["taints"][0]["value"] == "x" * 62


def test_a_card_that_gets_no_new_container_is_tainted() -> None:
    found = devices(card(0), card(1), GPU0="Xid 79: fallen off the bus")
    assert [(each["key"], each["value"]) for device in found for each in device["taints"]] == [
        ("tencent.com/unhealthy", "Xid-79-fallen-off-the-bus"),
        ("tencent.com/cordoned", "cordoned"),
    ]
    assert found[0]["taints"][0]["effect"] == "NoSchedule"
    (spec,) = slices_of(found, driver="d", node="n").values()
    stored = {**spec, "pool": {**spec["pool"], "generation": 7}}
    timed = {**found[0]["taints"][0], "timeAdded": "2026-01-01T00:00:00Z"}
    stored["devices"] = [{**found[0], "taints": [timed]}, found[1]]
    assert published(stored) == spec


def test_many_instances_take_two_slices() -> None:
    many = devices(*(card(at) for at in range(70)))
    found = slices_of(many, driver="d", node="n")
    assert {name: len(each["devices"]) for name, each in found.items()} == {"n-d": 64, "n-d-1": 6}
    assert {each["pool"]["resourceSliceCount"] for each in found.values()} == {2}


@given(st.integers(0, 2**40))
def test_counts_are_written_as_the_api_server_writes_them(count: int) -> None:
    assert format_quantity(count) == canonical(str(count))
    assert parse_quantity(format_quantity(count)) == count


def test_the_pcie_root_is_the_first_part_of_a_devices_path(tmp_path: Path) -> None:
    sysfs = tmp_path
    real = sysfs / "devices/pci0000:40/0000:40:01.1/0000:41:00.0"
    real.mkdir(parents=True)
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    (sysfs / "bus/pci/devices/0000:41:00.0").symlink_to(real)
    assert pcie_root("00000000:41:00.0", sysfs) == "pci0000:40"
    assert pcie_root("0000:42:00.0", sysfs) == ""
    assert pcie_root("", sysfs) == ""
