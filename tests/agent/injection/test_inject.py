import json
from dataclasses import replace
from typing import Any

import pytest

from agent.errors import GrantError, SettingsError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, Holding
from agent.injection.inject import (
    CONTROL_DEVICES,
    DriverFiles,
    Injection,
    inject,
    parse_directory,
    parse_extra_devices,
    shared_by_all,
)
from contract.inventory import Inventory
from tests.agent.builders import card, holding

CARDS = Inventory(tuple(card(index) for index in range(3)))


def held(cores: dict[str, int]) -> Holding:
    return holding(UNKNOWN, (f"{card}::{n}" for card, count in cores.items() for n in range(count)))


TWO = held({"GPU-0": 100, "GPU-2": 100})
CDI_NAMES = {f"GPU-{index}": f"nvidia.com/gpu=GPU-{index}" for index in range(3)}


DRIVER = DriverFiles("/opt/nvidia")
EVERYTHING: dict[str, Any] = {
    "control_devices": CONTROL_DEVICES,
    "extra_devices": ["/dev/infiniband/uverbs0"],
    "driver": DRIVER,
    "cdi_names": CDI_NAMES,
}
VISIBLE = {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"}
LOADER = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}
NODES = ("/dev/nvidia0", "/dev/nvidia2")
EDITS: dict[str, tuple[Injection, dict[str, Any], ContainerEdits]] = {
    "device nodes": (
        Injection.NODES,
        {"control_devices": ["/dev/nvidiactl"]},
        ContainerEdits(VISIBLE, (*NODES, "/dev/nvidiactl")),
    ),
    "extra devices come last and once": (
        Injection.NODES,
        {
            "control_devices": ["/dev/nvidiactl"],
            "extra_devices": ["/dev/infiniband/uverbs0", "/dev/nvidiactl"],
        },
        ContainerEdits(VISIBLE, (*NODES, "/dev/nvidiactl", "/dev/infiniband/uverbs0")),
    ),
    "driver files, read-only": (
        Injection.NODES,
        {"driver": DRIVER},
        ContainerEdits(VISIBLE | LOADER, NODES, (Mount("/usr/local/nvidia", "/opt/nvidia"),)),
    ),
    "driver files elsewhere": (
        Injection.NODES,
        {"driver": DriverFiles("/opt/nvidia", "/drv")},
        ContainerEdits(
            VISIBLE | {"LD_LIBRARY_PATH": "/drv/lib:/drv/lib64"},
            NODES,
            (Mount("/drv", "/opt/nvidia", read_only=True),),
        ),
    ),
    # Declared, so that runc and systemd keep them when they write a container's rules again.
    "the environment, and the nodes": (
        Injection.ENVVAR,
        EVERYTHING,
        ContainerEdits(VISIBLE, (*NODES, *CONTROL_DEVICES, "/dev/infiniband/uverbs0")),
    ),
    "the environment alone": (
        Injection.ENVVAR_ONLY,
        EVERYTHING,
        ContainerEdits(VISIBLE, ("/dev/infiniband/uverbs0",)),
    ),
    # "void" keeps the NVIDIA runtime from adding what an image's "all" would have it add.
    "CDI": (
        Injection.CDI,
        EVERYTHING,
        ContainerEdits(
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            ("/dev/infiniband/uverbs0",),
            cdi=("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-2"),
        ),
    ),
}


@pytest.mark.parametrize(("mode", "more", "edits"), EDITS.values(), ids=EDITS)
def test_the_response_for_cores_has_the_cards(
    mode: Injection, more: dict[str, Any], edits: ContainerEdits
) -> None:
    assert inject(TWO, CARDS, mode, **more) == edits


@pytest.mark.parametrize("mode", Injection)
def test_the_response_for_memory_has_no_cards(mode: Injection) -> None:
    assert inject(holding(UNKNOWN, (), {"GPU-0": 4}), CARDS, mode, **EVERYTHING) == ContainerEdits()


@pytest.mark.parametrize("names", [None, {}, {"GPU-0": "nvidia.com/gpu=GPU-0"}])
def test_a_card_without_a_cdi_name_is_refused(names: dict[str, str] | None) -> None:
    missing = "GPU-2" if names else "GPU-0"
    with pytest.raises(GrantError, match=f"^card {missing} has no CDI name on this node now$"):
        inject(TWO, CARDS, Injection.CDI, cdi_names=names)


def test_a_device_node_of_several_cards_is_named_once() -> None:
    same = Inventory(tuple(replace(card(index), device="/dev/null") for index in range(3)))
    edits = inject(TWO, same, Injection.NODES, control_devices=["/dev/null"])
    assert edits.devices == ("/dev/null",)


def test_the_common_edits_of_our_spec_set_void_too() -> None:
    """The runtime sets a spec's variables last, over those of the pod."""
    void = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert shared_by_all() == ContainerEdits(void)
    assert shared_by_all(control_devices=["/dev/nvidiactl"], driver=DRIVER) == ContainerEdits(
        void | LOADER, ("/dev/nvidiactl",), (Mount("/usr/local/nvidia", "/opt/nvidia"),)
    )


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ()),
        ("/dev/infiniband/uverbs0", ("/dev/infiniband/uverbs0",)),
        ("/dev/b, /dev/a ,/dev/b", ("/dev/b", "/dev/a")),
        ("/dev/..a", ("/dev/..a",)),
    ],
)
def test_extra_devices_are_read(text: str, paths: tuple[str, ...]) -> None:
    assert parse_extra_devices(text) == paths


@pytest.mark.parametrize(
    "text", ["/dev", "", "/etc/passwd", "/dev/../etc/passwd", "/dev//a", "//dev/a", "/dev/a\nb"]
)
def test_extra_devices_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_extra_devices(f"/dev/b,{text}")
    assert str(refused.value) == (
        f"extra-devices: Invalid value: {json.dumps(text)}: must be absolute paths below /dev, "
        "comma-separated, such as /dev/infiniband/uverbs0"
    )


@pytest.mark.parametrize("text", ["", "/", "//opt", "opt/nvidia", "/opt/../etc", "/opt/", "/opt\n"])
def test_a_path_that_is_no_directory_is_refused(text: str) -> None:
    assert parse_directory("driver-dir", "/a b/nvidia") == "/a b/nvidia"
    with pytest.raises(SettingsError) as refused:
        parse_directory("driver-dir", text)
    assert str(refused.value) == (
        f"driver-dir: Invalid value: {json.dumps(text)}: "
        "must be an absolute path without '.' and '..', such as /opt/nvidia"
    )


def test_a_mig_instance_brings_its_cards_node_and_its_capabilities() -> None:
    """The capabilities of the card's other instances stay away."""
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (66, 67, 84, 85)]
    seven = replace(card(uuid="MIG-7"), index=1007, capabilities=tuple(caps[:2]))
    nine = replace(card(uuid="MIG-9"), index=1009, capabilities=tuple(caps[2:]))
    inventory = Inventory((card(1), seven, nine))
    share = held({"MIG-9": 30})
    edits = inject(share, inventory, Injection.NODES, control_devices=["/dev/nvidiactl"])
    assert edits == ContainerEdits(
        {"NVIDIA_VISIBLE_DEVICES": "MIG-9"}, ("/dev/nvidia0", *caps[2:], "/dev/nvidiactl")
    )
    both = held({"MIG-7": 100, "MIG-9": 100})
    assert inject(both, inventory, Injection.ENVVAR).devices == ("/dev/nvidia0", *caps)
