from dataclasses import replace

import pytest

from agent.allocator.model.answer import Answer, Mount
from agent.allocator.model.grant import Grant, Share
from agent.errors import GrantError, SettingsError
from agent.injection.inject import (
    CONTROL_DEVICES,
    DriverFiles,
    Injection,
    inject,
    parse_directory,
    parse_extra_devices,
    shared_by_all,
)
from placement.cards import Inventory
from tests.agent.builders import CORE, MEMORY, card

CARDS = Inventory(tuple(card(index) for index in range(3)))
TWO = Grant(CORE, (Share("GPU-0", 100), Share("GPU-2", 100)))
CDI_NAMES = {f"GPU-{index}": f"nvidia.com/gpu=GPU-{index}" for index in range(3)}


def test_the_core_answer_carries_device_nodes_and_the_visible_devices_by_index() -> None:
    answer = inject(TWO, CARDS, Injection.NODES, control_devices=["/dev/nvidiactl"])
    assert answer == Answer(
        {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"},
        ("/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl"),
    )


def test_extra_devices_come_last_and_once() -> None:
    answer = inject(
        TWO,
        CARDS,
        Injection.NODES,
        control_devices=["/dev/nvidiactl"],
        extra_devices=["/dev/infiniband/uverbs0", "/dev/nvidiactl"],
    )
    assert answer.devices == (
        "/dev/nvidia0",
        "/dev/nvidia2",
        "/dev/nvidiactl",
        "/dev/infiniband/uverbs0",
    )


def test_driver_files_are_a_read_only_mount_that_the_loader_is_told_of() -> None:
    answer = inject(TWO, CARDS, Injection.NODES, driver=DriverFiles("/opt/nvidia"))
    assert answer.mounts == (Mount("/usr/local/nvidia", "/opt/nvidia", read_only=True),)
    assert answer.envs == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    }
    elsewhere = inject(TWO, CARDS, Injection.NODES, driver=DriverFiles("/opt/nvidia", "/drv"))
    assert elsewhere.mounts == (Mount("/drv", "/opt/nvidia"),)
    assert elsewhere.envs["LD_LIBRARY_PATH"] == "/drv/lib:/drv/lib64"


def test_with_the_environment_alone_the_container_runtime_does_the_rest() -> None:
    answer = inject(
        TWO,
        CARDS,
        Injection.ENVVAR,
        control_devices=CONTROL_DEVICES,
        extra_devices=["/dev/infiniband/uverbs0"],
        driver=DriverFiles("/opt/nvidia"),
        cdi_names=CDI_NAMES,
    )
    assert answer == Answer({"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"})


def test_cdi_names_the_cards_and_keeps_the_nvidia_runtime_from_adding_any() -> None:
    """An image that says ``all`` would otherwise get every card beside its own."""
    answer = inject(
        TWO,
        CARDS,
        Injection.CDI,
        control_devices=CONTROL_DEVICES,
        extra_devices=["/dev/infiniband/uverbs0"],
        driver=DriverFiles("/opt/nvidia"),
        cdi_names=CDI_NAMES,
    )
    assert answer == Answer(
        {"NVIDIA_VISIBLE_DEVICES": "void"},
        ("/dev/infiniband/uverbs0",),
        cdi=("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-2"),
    )


@pytest.mark.parametrize("names", [None, {}, {"GPU-0": "nvidia.com/gpu=GPU-0"}])
def test_a_card_without_a_cdi_name_is_refused(names: dict[str, str] | None) -> None:
    with pytest.raises(GrantError) as refused:
        inject(TWO, CARDS, Injection.CDI, cdi_names=names)
    missing = "GPU-2" if names else "GPU-0"
    assert str(refused.value) == f"card {missing} has no CDI name on this node now"


@pytest.mark.parametrize("mode", Injection)
def test_every_core_answer_says_which_cards_are_visible_and_never_what_the_image_knows(
    mode: Injection,
) -> None:
    answer = inject(TWO, CARDS, mode, driver=DriverFiles("/d"), cdi_names=CDI_NAMES)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] in {"GPU-0,GPU-2", "void"}
    assert not {"NVIDIA_DRIVER_CAPABILITIES", "PATH"} & set(answer.envs)


@pytest.mark.parametrize("mode", Injection)
def test_the_memory_answer_carries_nothing_of_the_cards(mode: Injection) -> None:
    memory = Grant(MEMORY, (Share("GPU-0", 4),))
    answer = inject(
        memory,
        CARDS,
        mode,
        control_devices=CONTROL_DEVICES,
        extra_devices=["/dev/x"],
        driver=DriverFiles("/opt/nvidia"),
    )
    assert answer == Answer()


def test_a_device_node_of_several_cards_is_named_once() -> None:
    same = Inventory(tuple(replace(card(index), device="/dev/null") for index in range(3)))
    assert inject(TWO, same, Injection.NODES, control_devices=["/dev/null"]).devices == (
        "/dev/null",
    )


def test_what_all_share_in_a_spec_of_ours_says_void_too() -> None:
    """The runtime sets a spec's variables last, over those of the pod."""
    assert shared_by_all() == Answer({"NVIDIA_VISIBLE_DEVICES": "void"})
    shared = shared_by_all(control_devices=["/dev/nvidiactl"], driver=DriverFiles("/opt/nvidia"))
    assert shared == Answer(
        {
            "NVIDIA_VISIBLE_DEVICES": "void",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        },
        ("/dev/nvidiactl",),
        (Mount("/usr/local/nvidia", "/opt/nvidia"),),
    )


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ()),
        ("  ", ()),
        ("/dev/infiniband/uverbs0", ("/dev/infiniband/uverbs0",)),
        ("/dev/b, /dev/a ,/dev/b", ("/dev/b", "/dev/a")),
        ("/dev/..a", ("/dev/..a",)),
    ],
)
def test_extra_devices_are_read(text: str, paths: tuple[str, ...]) -> None:
    assert parse_extra_devices(text) == paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/dev", '"/dev"'),
        ("/dev/", '"/dev/"'),
        ("/dev/a,", '""'),
        ("dev/a", '"dev/a"'),
        ("/etc/passwd", '"/etc/passwd"'),
        ("/dev/../etc/passwd", '"/dev/../etc/passwd"'),
        ("/dev/./a", '"/dev/./a"'),
        ("/dev//a", '"/dev//a"'),
        ("/dev/a/", '"/dev/a/"'),
        ("//dev/a", '"//dev/a"'),
        ("/dev/a\nb", '"/dev/a\\nb"'),
        ("/dev/a\0", '"/dev/a\\u0000"'),
    ],
)
def test_extra_devices_that_cannot_be_are_refused(text: str, shown: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_extra_devices(text)
    assert str(refused.value) == (
        f"extra-devices: Invalid value: {shown}: must be absolute paths below /dev, "
        "comma-separated, such as /dev/infiniband/uverbs0"
    )


@pytest.mark.parametrize("text", ["/opt/nvidia", "/run/nvidia/driver", "/a b"])
def test_a_directory_is_read(text: str) -> None:
    assert parse_directory("driver-dir", text) == text


@pytest.mark.parametrize(
    "text", ["", "/", "//", "//opt", "opt/nvidia", "/opt/../etc", "/opt/", "/opt/./a", "/opt\n"]
)
def test_a_directory_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_directory("driver-dir", text)
    assert str(refused.value).startswith("driver-dir: Invalid value: ")
    assert str(refused.value).endswith(
        ": must be an absolute path without '.' and '..', such as /opt/nvidia"
    )
