"""What of a node's cards a container finds, by the way they are injected."""

import json
import os
from pathlib import Path

import pytest

from agent.injection.inject import DriverFiles, Injection
from tests.agent.driver.driver_host import DriverHost
from tests.runtime.conftest import MakeNode
from tests.runtime.containerd import Runtime
from tests.runtime.gpunode import GpuNode, card_devices
from tests.runtime.pods import Inside

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def opens(inside: Inside, path: str) -> bool:
    """Whether a container may open a device node: no driver is behind it, but it is allowed."""
    return "No such device or address" in inside.refused(f"cat {path}")


def found_in_dev(inside: Inside) -> list[str]:
    return [f"/dev/{each}" for each in inside.list("/dev") if each.startswith("gpu-turnstile-")]


def assert_only(inside: Inside, node: GpuNode, *cards: int) -> None:
    """These cards can be opened, by their nodes; the others not even by nodes made by hand."""
    assert found_in_dev(inside) == [node.devices[card] for card in cards]
    for card, path in enumerate(node.devices):
        if card in cards:
            assert opens(inside, path)
        else:
            assert "No such file or directory" in inside.refused(f"cat {path}")
            inside.sh(f"mknod /forged{card} c 60 {card}")
            assert "Operation not permitted" in inside.refused(f"cat /forged{card}")


def test_with_nodes_a_container_opens_its_card_and_no_other(make_node: MakeNode) -> None:
    node = make_node(2)
    for inside, own in ((node.run("a", 60, 4), 0), (node.run("b", 60, 4), 1)):
        assert inside.env()[VISIBLE] == f"GPU-{own}"
        assert_only(inside, node, own)


def test_whole_cards_are_ordered_by_index(make_node: MakeNode) -> None:
    with card_devices(1) as extra:
        node = make_node(3, extra_devices=tuple(extra))
        node.run("a", 10, 1)
        inside = node.run("b", 200, 4)
        found = inside.env()[VISIBLE].split(",")
        assert len(found) == 2
        assert found == sorted(found)
        own = [node.devices[int(each.removeprefix("GPU-"))] for each in found]
        assert sorted(found_in_dev(inside)) == sorted([*own, *extra])
        assert all(opens(inside, path) for path in extra)


def test_a_mig_instance_has_its_cards_node_and_its_own_capabilities(
    runtime: Runtime, tmp_path: Path
) -> None:
    cards = tmp_path / "cards.yaml"
    with card_devices(5) as (card, *capabilities):
        own = [capabilities[:2], capabilities[2:]]
        entry = {"minor": 0, "device": card, "memory": "8Gi"}
        instances = [
            {"uuid": f"MIG-{at}", "index": 1000 + at, "capabilities": nodes, **entry}
            for at, nodes in enumerate(own)
        ]
        cards.write_text(json.dumps({"cards": instances}))
        with GpuNode(runtime, [card, card], cards=cards) as node:
            for at, name in enumerate(("a", "b")):
                inside = node.run(name, 60, 4)
                assert inside.env()[VISIBLE] == f"MIG-{at}"
                assert sorted(found_in_dev(inside)) == sorted([card, *own[at]])
                assert all(opens(inside, path) for path in (card, *own[at]))


def test_the_environment_overrides_an_image_that_requests_all_cards(
    make_node: MakeNode,
) -> None:
    node = make_node(2, inject=Injection.ENVVAR_ONLY)
    assert Inside.env(node.run_without_cards("plain"))[VISIBLE] == "all"
    inside = node.run("a", 100, 0)
    assert inside.env()[VISIBLE] == "GPU-0"
    assert found_in_dev(inside) == []


def test_beside_the_environment_the_runtime_itself_allows_the_card(make_node: MakeNode) -> None:
    """systemd revokes devices that runc did not allow at its next ``daemon-reload``."""
    node = make_node(2, inject=Injection.ENVVAR)
    inside = node.run("a", 100, 0)
    assert inside.env()[VISIBLE] == "GPU-0"
    assert_only(inside, node, 0)


def test_the_driver_files_are_found_and_not_written_to(make_node: MakeNode, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    (driver / "lib64").mkdir(parents=True)
    (driver / "lib64" / "libcuda.so.1").write_text("the driver's")
    node = make_node(1, driver_dir=DriverFiles(str(driver)))
    inside = node.run("a", 50, 4)
    assert inside.env()["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert inside.sh("cat /usr/local/nvidia/lib64/libcuda.so.1") == "the driver's"
    for script in (
        "touch /usr/local/nvidia/more",
        "echo x >/usr/local/nvidia/lib64/libcuda.so.1",
        "rm /usr/local/nvidia/lib64/libcuda.so.1",
    ):
        assert "Read-only file system" in inside.refused(script)
    assert "ro" in inside.mounts()["/usr/local/nvidia"]


def test_without_a_driver_directory_the_library_path_is_the_images_own(make_node: MakeNode) -> None:
    inside = make_node(1).run("a", 50, 4)
    assert inside.env()["LD_LIBRARY_PATH"] == "/of/the/image"


def test_the_container_runtime_resolves_our_cdi_spec(
    make_node: MakeNode, runtime: Runtime, tmp_path: Path
) -> None:
    if not runtime.knows_cdi:
        pytest.skip("this runtime does not know CDI (containerd before 1.7)")
    (tmp_path / "lib64").mkdir()
    node = make_node(2, inject=Injection.CDI, driver_dir=DriverFiles(str(tmp_path)))
    uid = node.admit("a", (60, 4))
    assert node.received(uid)["devices"] == []
    inside = node.start("a", uid)
    assert_only(inside, node, 0)
    assert inside.env()[VISIBLE] == "void"
    assert inside.list("/usr/local/nvidia") == ["lib64"]
    assert "Read-only file system" in inside.refused("touch /usr/local/nvidia/more")
    assert_only(node.run("b", 60, 4), node, 1)


def test_a_driver_in_a_container_reaches_containers_by_our_cdi_spec(
    make_node: MakeNode, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the GPU Operator: neither libraries nor device nodes are the host's own."""
    if not runtime.knows_cdi:
        pytest.skip("this runtime does not know CDI (containerd before 1.7)")
    root = tmp_path / "driver"
    DriverHost(root).install("550.54.15")
    monkeypatch.setattr("agent.driver.host.DRIVER_IN_ITS_CONTAINER", str(root))
    (tmp_path / "host").symlink_to("/")
    node = make_node(
        2, inject=Injection.CDI, driver_dir=DriverFiles("auto"), host_root=tmp_path / "host"
    )
    (root / "dev").mkdir()
    for path in map(Path, node.devices):
        os.mknod(root / "dev" / path.name, path.stat().st_mode, path.stat().st_rdev)
        path.unlink()
    inside = node.run("a", 60, 4)
    assert_only(inside, node, 0)
    assert "550.54.15" in inside.sh("cat /usr/local/nvidia/lib64/libcuda.so.1")
    assert_only(node.run("b", 60, 4), node, 1)
