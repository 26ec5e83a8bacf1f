"""The devices of ResourceSlices, as data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.slots import DeviceTable
from agent.cards.pci import pcie_root
from agent.dra.devices import devices_of, published, slices_of
from contract.inventory import Card, Inventory
from contract.quantity import format_quantity, parse_quantity
from simulator.api.quantities import canonical
from tests.agent.builders import BLOCK, card


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
