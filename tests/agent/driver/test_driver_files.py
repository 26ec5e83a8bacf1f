"""From a host with a driver to the folder that containers find."""

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agent.driver import folder as folder_module
from agent.driver.folder import DriverFolder
from agent.driver.host import Host, device_on_host
from agent.driver.keeper import DriverKeeper
from agent.errors import DriverFilesError
from tests.agent.builders import raising
from tests.agent.driver.driver_host import ELF, I386, DriverHost, expected, tree
from tests.agent.fakes import eventually
from tests.agent.killing import killed
from tests.agent.threads import running

OLD, NEW = "535.129.03", "550.54.15"


@pytest.fixture
def host(tmp_path: Path) -> DriverHost:
    made = DriverHost(tmp_path / "host")
    made.install(OLD)
    return made


@pytest.fixture
def link(tmp_path: Path) -> Path:
    return tmp_path / "state" / "driver" / "current"


def lay_out(host: Host, link: Path) -> bool:
    return DriverFolder(link).lay_out(host.look(), host.open)


def generations(link: Path) -> list[str]:
    return sorted(p.name for p in link.parent.iterdir() if not p.name.startswith(".") and p != link)


def test_containers_find_the_drivers_files_and_the_names_by_which_they_are_looked_up(
    host: DriverHost, link: Path
) -> None:
    assert not DriverFolder(link).usable
    assert lay_out(host.host(), link)
    assert tree(link) == expected(OLD)
    assert DriverFolder(link).usable
    assert not lay_out(host.host(), link)  # nothing to do the second time


def test_a_new_driver_comes_in_one_step_and_running_containers_keep_theirs(
    host: DriverHost, link: Path
) -> None:
    lay_out(host.host(), link)
    mounted = os.open(link, os.O_RDONLY)  # as a container has it
    host.install(NEW)
    assert lay_out(host.host(), link)
    assert tree(link) == expected(NEW)
    assert DriverFolder(link).prune(idle=False) == []
    assert tree(Path(f"/proc/self/fd/{mounted}")) == expected(OLD)
    os.close(mounted)
    host.install(OLD)  # the same files again, as a package manager writes them: new ones
    lay_out(host.host(), link)
    assert tree(link) == expected(OLD)


def test_old_drivers_go_when_no_container_can_have_them(
    host: DriverHost, link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (OLD, NEW):
        host.install(version)
        lay_out(host.host(), link)
    folder = DriverFolder(link)
    assert folder.prune(idle=False) == []
    monkeypatch.setattr(folder_module, "_boot_id", lambda: b"the next boot")
    (gone,) = folder.prune(idle=False)
    assert gone.startswith(f"{OLD}-")
    host.install(OLD)
    lay_out(host.host(), link)
    (gone,) = folder.prune(idle=True)
    assert gone.startswith(f"{NEW}-")
    assert generations(link) == [str(link.readlink())]
    assert sorted(p.name for p in link.parent.iterdir() if p.name.startswith(".")) == [".lock"]


STEPS = ("mkdir", "rename", "symlink", "write", "fsync", "unlink", "rmdir")


@pytest.mark.slow
def test_an_agent_killed_at_any_step_leaves_a_whole_driver(
    host: DriverHost, tmp_path: Path
) -> None:
    for killed_at in range(100):
        link = tmp_path / f"state-{killed_at}" / "current"
        host.install(OLD)
        lay_out(host.host(), link)
        host.install(NEW)
        if not killed(killed_at, STEPS, partial(_renew, host.host(), link)):
            break
        assert tree(link) in (expected(OLD), expected(NEW))
        _renew(host.host(), link)
        assert tree(link) == expected(NEW)
        assert generations(link) == [str(link.readlink())]
    assert 20 < killed_at < 99


def _renew(host: Host, link: Path) -> None:
    lay_out(host, link)
    DriverFolder(link).prune(idle=True)


def test_a_damaged_folder_is_made_anew_and_not_mended_under_containers(
    host: DriverHost, link: Path
) -> None:
    lay_out(host.host(), link)
    first = link.resolve()
    (first / "lib64/libcuda.so.1").unlink()
    assert lay_out(host.host(), link)
    assert tree(link) == expected(OLD)
    assert link.resolve() != first
    assert first.exists()


def test_a_folder_that_a_runtime_made_in_the_place_of_the_link_gives_way(
    host: DriverHost, link: Path
) -> None:
    link.mkdir(parents=True)
    lay_out(host.host(), link)
    assert tree(link) == expected(OLD)


def test_another_agent_of_the_node_that_is_at_it_is_left_alone(
    host: DriverHost, link: Path
) -> None:
    lay_out(host.host(), link)
    with (link.parent / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        host.install(NEW)
        assert not lay_out(host.host(), link)
        assert DriverFolder(link).prune(idle=True) == []
    assert tree(link) == expected(OLD)


def test_a_full_disk_leaves_the_driver_before(
    host: DriverHost, link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(host.host(), link)
    host.install(NEW)

    monkeypatch.setattr(
        shutil, "copyfileobj", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    )
    with pytest.raises(DriverFilesError, match="No space left on device: free space there"):
        lay_out(host.host(), link)
    assert tree(link) == expected(OLD)
    assert generations(link) == [str(link.readlink())]


def test_the_folder_follows_the_kernels_module_and_not_the_package(host: DriverHost) -> None:
    host.install(NEW)
    host.module.write_text(f"{OLD}\n")
    with pytest.raises(DriverFilesError, match=f"libraries of driver {NEW}.* module of {OLD}"):
        host.host().look()
    host.module.unlink()  # not loaded yet: the loader's first choice
    assert host.host().look().version == NEW
    host.module.write_text(f"{OLD}\n")
    host.add("libcuda.so.1", f"libcuda.so.{OLD}")  # an older one beside it
    host.write_cache()
    assert set(host.host().look().files) == {f"lib64/libcuda.so.{OLD}", "bin/nvidia-smi"}


def test_32_bit_libraries_have_a_folder_of_their_own_but_not_where_vcuda_stands_before(
    host: DriverHost, link: Path
) -> None:
    folder = host.root / "usr/lib/i386-linux-gnu"
    folder.mkdir()
    (folder / f"libcuda.so.{OLD}").write_bytes(ELF + b"32")
    host.entries.append((I386, "libcuda.so.1", f"/usr/lib/i386-linux-gnu/libcuda.so.{OLD}"))
    host.write_cache()
    found = host.host().look()
    assert f"lib/libcuda.so.{OLD}" in found.files
    assert found.links["lib/libcuda.so.1"] == f"libcuda.so.{OLD}"
    with pytest.raises(DriverFilesError, match=r"has no .* of vcuda-controller: put it"):
        host.host(vcuda=True).look()
    left = host.root / "etc/gpu-manager/vdriver/nvidia"  # by gpu-manager
    for each in ("lib64/libcuda-control.so", "bin/gpu-client"):
        (left / each).parent.mkdir(parents=True)
        (left / each).write_bytes(ELF + b"vcuda")
    lay_out(host.host(vcuda=True), link)
    control = "libcuda-control.so"
    expected_tree = expected(OLD) | {f"lib64/{control}": "\x7fELF\x02\x01\x01vcuda"}
    expected_tree |= {"bin/gpu-client": "\x7fELF\x02\x01\x01vcuda"}
    expected_tree |= {
        f"lib64/lib{n}.so{v}": control for n in ("cuda", "nvidia-ml") for v in ("", ".1")
    }
    assert tree(link) == expected_tree


def contain(host: DriverHost, version: str) -> DriverHost:
    """Put a driver container there, as the GPU Operator mounts its root."""
    contained = DriverHost(host.root / "run/nvidia/driver")
    contained.install(version)
    host.module.write_text(f"{version}\n")
    return contained


def test_a_driver_in_a_container_is_found_where_the_gpu_operator_mounts_it(
    tmp_path: Path, link: Path
) -> None:
    host = DriverHost(tmp_path / "bare")
    host.write_cache()
    with pytest.raises(DriverFilesError, match="the host's loader knows no libcuda"):
        host.host().look()  # after a boot, before the container
    contain(host, NEW)
    assert lay_out(host.host(), link)
    assert tree(link) == expected(NEW)
    source = host.host().look().files["bin/nvidia-smi"]
    assert source.path == "/run/nvidia/driver/usr/bin/nvidia-smi"


def test_of_two_drivers_the_one_in_the_kernel_is_taken_and_the_hosts_first(
    host: DriverHost, link: Path
) -> None:
    contained = contain(host, NEW)
    lay_out(host.host(), link)
    assert tree(link) == expected(NEW)
    contained.install(OLD)
    host.module.write_text(f"{OLD}\n")
    assert host.host().look().files["bin/nvidia-smi"].path == "/usr/bin/nvidia-smi"


def test_device_nodes_of_a_driver_container_are_in_its_own_dev(host: DriverHost) -> None:
    assert device_on_host(host.root, "/dev/nvidia0") == "/dev/nvidia0"
    (host.root / "run/nvidia/driver/dev").mkdir(parents=True)
    (host.root / "run/nvidia/driver/dev/nvidia0").touch()
    assert device_on_host(host.root, "/dev/nvidia0") == "/run/nvidia/driver/dev/nvidia0"
    assert device_on_host(host.root, "/dev/nvidiactl") == "/dev/nvidiactl"


def _no_cache(host: DriverHost) -> None:
    (host.root / "etc/ld.so.cache").unlink()


def _no_elf(host: DriverHost) -> None:
    host.add("libcuda.so.1", f"libcuda.so.{OLD}", b"#!/bin/sh\n")


def _pipe(host: DriverHost) -> None:
    path = host.root / host.lib / f"libcuda.so.{OLD}"
    path.unlink()
    os.mkfifo(path)


def _outside(host: DriverHost) -> None:
    outside = host.root.parent / f"libcuda.so.{OLD}"
    outside.write_bytes(ELF)
    path = host.root / host.lib / "libcuda.so.1"
    path.unlink()
    path.symlink_to("../" * 20 + str(outside)[1:])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_no_cache, "there is no /etc/ld.so.cache below "),
        (_no_elf, "is no ELF file: install the driver anew"),
        (_pipe, "the host's loader knows no libcuda.so.1 of a driver"),
        (_outside, "the host's loader knows no libcuda.so.1 of a driver"),
    ],
)
def test_an_odd_host_is_refused_in_words(
    host: DriverHost, link: Path, spoil: Callable[[DriverHost], None], why: str
) -> None:
    spoil(host)
    with pytest.raises(DriverFilesError, match=why):
        lay_out(host.host(), link)
    assert not DriverFolder(link).usable


def test_a_file_that_changes_while_it_is_copied_is_not_taken(host: DriverHost, link: Path) -> None:
    layout = host.host().look()
    host.install(NEW)
    host.install(OLD)  # the same version, other files
    with pytest.raises(DriverFilesError, match="is being changed on the host"):
        DriverFolder(link).lay_out(layout, host.host().open)
    assert generations(link) == []


def test_another_architecture_has_no_driver(host: DriverHost) -> None:
    with pytest.raises(DriverFilesError, match="riscv64 is no architecture of a driver"):
        Host(host.root, machine="riscv64").look()


def test_the_folder_comes_late_follows_the_host_and_outlives_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.driver.keeper._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("agent.driver.keeper._RETRY_SECONDS", 0.01)
    host, link, stop = DriverHost(tmp_path / "host"), tmp_path / "driver/current", threading.Event()
    results: list[bool] = []
    keeper = DriverKeeper(
        host.host(),
        DriverFolder(link),
        idle=lambda: True,
        on_result=results.append,
    )
    with running(lambda: keeper.run(stop), stop.set):
        eventually(lambda: False in results, "it has looked")
        assert "there is no /etc/ld.so.cache" in keeper.problem
        assert not keeper.ready.is_set()
        host.install("535.1")
        assert keeper.ready.wait(30)
        eventually(lambda: results[-1], "all is right")
        host.install("550.2")
        eventually(lambda: tree(link) == expected("550.2"), "it follows")
        (host.root / "etc/ld.so.cache").unlink()
        eventually(lambda: bool(keeper.problem), "the host has no driver now")
    assert tree(link) == expected("550.2")
    assert DriverKeeper(host.host(), DriverFolder(link), idle=lambda: True).ready.is_set()
