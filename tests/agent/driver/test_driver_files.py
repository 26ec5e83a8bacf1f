"""From a host with a driver to the folder that containers find."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver import folder as folder_module
from agent.driver.folder import DriverFolder
from agent.driver.host import Host, device_on_host
from agent.driver.ldcache import LARGEST, Library, parse_ldcache
from agent.driver.updater import DriverUpdater
from agent.errors import DriverFilesError
from tests.agent.builders import raising
from tests.agent.driver.driver_host import ELF, I386, X86_64, DriverHost, expected, ldcache, tree
from tests.agent.killing import killed
from tests.agent.threads import CountedStop

OLD, NEW = "535.129.03", "550.54.15"


class Site(DriverHost):
    """A host, and the link at which containers find its driver."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "host")
        self.link = folder / "state" / "driver" / "current"

    def folder(self) -> DriverFolder:
        return DriverFolder(self.link)

    def lay_out(self, host: Host | None = None) -> bool:
        host = host or self.host()
        return self.folder().lay_out(host.find_files(), host.open)

    def found(self) -> dict[str, str]:
        """What containers find."""
        return tree(self.link)

    def generations(self) -> list[str]:
        every = (each for each in self.link.parent.iterdir() if each != self.link)
        return sorted(each.name for each in every if not each.name.startswith("."))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.install(OLD)
    return made


def test_containers_find_the_drivers_files_and_their_sonames(
    site: Site,
) -> None:
    assert not site.folder().usable
    assert site.lay_out()
    assert site.found() == expected(OLD)
    assert site.folder().usable
    assert not site.lay_out()  # nothing to do the second time


def test_a_new_driver_comes_in_one_step_and_running_containers_keep_theirs(site: Site) -> None:
    site.lay_out()
    mounted = os.open(site.link, os.O_RDONLY)  # as a container has it
    site.install(NEW)
    assert site.lay_out()
    assert site.found() == expected(NEW)
    assert site.folder().prune(idle=False) == []
    assert tree(Path(f"/proc/self/fd/{mounted}")) == expected(OLD)
    os.close(mounted)
    site.install(OLD)  # the same files again, as a package manager writes them: new ones
    site.lay_out()
    assert site.found() == expected(OLD)


def test_old_drivers_are_removed_once_no_container_can_have_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (OLD, NEW):
        site.install(version)
        site.lay_out()
    folder = site.folder()
    assert folder.prune(idle=False) == []
    monkeypatch.setattr(folder_module, "_boot_id", lambda: b"the next boot")
    (removed,) = folder.prune(idle=False)
    assert removed.startswith(f"{OLD}-")
    site.install(OLD)
    site.lay_out()
    (removed,) = folder.prune(idle=True)
    assert removed.startswith(f"{NEW}-")
    assert site.generations() == [str(site.link.readlink())]
    assert sorted(p.name for p in site.link.parent.iterdir() if p.name.startswith(".")) == [".lock"]


STEPS = ("mkdir", "rename", "symlink", "write", "fsync", "unlink", "rmdir")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3))
def test_an_agent_killed_at_any_step_leaves_a_whole_driver(
    site: Site, tmp_path: Path, first: int
) -> None:
    """Every third step from *first* on, so that three workers share them."""

    def renew() -> None:
        site.lay_out()
        site.folder().prune(idle=True)

    for killed_at in range(first, 100, 3):
        site.link = tmp_path / f"state-{killed_at}" / "current"
        site.install(OLD)
        site.lay_out()
        site.install(NEW)
        if not killed(killed_at, STEPS, renew):
            break
        assert site.found() in (expected(OLD), expected(NEW))
        renew()
        assert site.found() == expected(NEW)
        assert site.generations() == [str(site.link.readlink())]
    assert 20 < killed_at < 99


def test_a_damaged_folder_is_replaced_and_not_repaired_under_containers(site: Site) -> None:
    site.lay_out()
    first = site.link.resolve()
    (first / "lib64/libcuda.so.1").unlink()
    assert site.lay_out()
    assert site.found() == expected(OLD)
    assert site.link.resolve() != first
    assert first.exists()


def test_a_folder_that_a_runtime_made_instead_of_the_link_is_replaced(site: Site) -> None:
    site.link.mkdir(parents=True)
    site.lay_out()
    assert site.found() == expected(OLD)


def test_another_running_agent_of_the_node_is_not_disturbed(site: Site) -> None:
    site.lay_out()
    with (site.link.parent / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        site.install(NEW)
        assert not site.lay_out()
        assert site.folder().prune(idle=True) == []
    assert site.found() == expected(OLD)


def test_a_full_disk_keeps_the_earlier_driver_files(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.lay_out()
    site.install(NEW)

    monkeypatch.setattr(
        shutil, "copyfileobj", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    )
    with pytest.raises(DriverFilesError, match="No space left on device: free space there"):
        site.lay_out()
    assert site.found() == expected(OLD)
    assert site.generations() == [str(site.link.readlink())]


def test_the_folder_follows_the_kernels_module_and_not_the_package(site: Site) -> None:
    site.install(NEW)
    site.module.write_text(f"{OLD}\n")
    with pytest.raises(DriverFilesError, match=f"libraries of driver {NEW}.* module of {OLD}"):
        site.host().find_files()
    site.module.unlink()  # not loaded yet: the loader's first choice
    assert site.host().find_files().version == NEW
    site.module.write_text(f"{OLD}\n")
    site.add("libcuda.so.1", f"libcuda.so.{OLD}")  # an older one beside it
    site.write_cache()
    assert set(site.host().find_files().files) == {f"lib64/libcuda.so.{OLD}", "bin/nvidia-smi"}


def test_32_bit_libraries_have_a_folder_of_their_own_but_not_with_vcuda(
    site: Site,
) -> None:
    folder = site.root / "usr/lib/i386-linux-gnu"
    folder.mkdir()
    (folder / f"libcuda.so.{OLD}").write_bytes(ELF + b"32")
    site.entries.append((I386, "libcuda.so.1", f"/usr/lib/i386-linux-gnu/libcuda.so.{OLD}"))
    site.write_cache()
    found = site.host().find_files()
    assert f"lib/libcuda.so.{OLD}" in found.files
    assert found.links["lib/libcuda.so.1"] == f"libcuda.so.{OLD}"
    with pytest.raises(DriverFilesError, match=r"has no .* of vcuda-controller: put it"):
        site.host(vcuda=True).find_files()
    left = site.root / "etc/gpu-manager/vdriver/nvidia"  # by gpu-manager
    for each in ("lib64/libcuda-control.so", "bin/gpu-client"):
        (left / each).parent.mkdir(parents=True)
        (left / each).write_bytes(ELF + b"vcuda")
    site.lay_out(site.host(vcuda=True))
    control = "libcuda-control.so"
    expected_tree = expected(OLD) | {f"lib64/{control}": "\x7fELF\x02\x01\x01vcuda"}
    expected_tree |= {"bin/gpu-client": "\x7fELF\x02\x01\x01vcuda"}
    expected_tree |= {
        f"lib64/lib{n}.so{v}": control for n in ("cuda", "nvidia-ml") for v in ("", ".1")
    }
    assert site.found() == expected_tree


def contain(site: Site, version: str) -> DriverHost:
    """Put a driver container there, as the GPU Operator mounts its root."""
    contained = DriverHost(site.root / "run/nvidia/driver")
    contained.install(version)
    site.module.write_text(f"{version}\n")
    return contained


def test_a_driver_in_a_container_is_found_where_the_gpu_operator_mounts_it(tmp_path: Path) -> None:
    site = Site(tmp_path / "bare")
    site.write_cache()
    with pytest.raises(DriverFilesError, match="the host's loader finds no libcuda"):
        site.host().find_files()  # after a boot, before the container
    contain(site, NEW)
    assert site.lay_out()
    assert site.found() == expected(NEW)
    source = site.host().find_files().files["bin/nvidia-smi"]
    assert source.path == "/run/nvidia/driver/usr/bin/nvidia-smi"


def test_of_two_drivers_the_one_in_the_kernel_is_taken_and_the_hosts_first(site: Site) -> None:
    contained = contain(site, NEW)
    site.lay_out()
    assert site.found() == expected(NEW)
    contained.install(OLD)
    site.module.write_text(f"{OLD}\n")
    assert site.host().find_files().files["bin/nvidia-smi"].path == "/usr/bin/nvidia-smi"


def test_device_nodes_of_a_driver_container_are_in_its_own_dev(site: Site) -> None:
    assert device_on_host(site.root, "/dev/nvidia0") == "/dev/nvidia0"
    (site.root / "run/nvidia/driver/dev").mkdir(parents=True)
    (site.root / "run/nvidia/driver/dev/nvidia0").touch()
    assert device_on_host(site.root, "/dev/nvidia0") == "/run/nvidia/driver/dev/nvidia0"
    assert device_on_host(site.root, "/dev/nvidiactl") == "/dev/nvidiactl"


def _no_cache(site: Site) -> None:
    (site.root / "etc/ld.so.cache").unlink()


def _no_elf(site: Site) -> None:
    site.add("libcuda.so.1", f"libcuda.so.{OLD}", b"#!/bin/sh\n")


def _pipe(site: Site) -> None:
    path = site.root / site.lib / f"libcuda.so.{OLD}"
    path.unlink()
    os.mkfifo(path)


def _loop(site: Site) -> None:
    path = site.root / site.lib / "libcuda.so.1"
    path.unlink()
    path.symlink_to("libcuda.so.1")


def _outside(site: Site) -> None:
    outside = site.root.parent / f"libcuda.so.{OLD}"
    outside.write_bytes(ELF)
    path = site.root / site.lib / "libcuda.so.1"
    path.unlink()
    path.symlink_to("../" * 20 + str(outside)[1:])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_no_cache, "there is no /etc/ld.so.cache below "),
        (_no_elf, "is no ELF file: reinstall the driver"),
        (_pipe, "the host's loader finds no libcuda.so.1 of a driver"),
        (_loop, "the host's loader finds no libcuda.so.1 of a driver"),
        (_outside, "the host's loader finds no libcuda.so.1 of a driver"),
    ],
)
def test_an_invalid_host_is_refused_with_a_reason(
    site: Site, spoil: Callable[[Site], None], why: str
) -> None:
    spoil(site)
    with pytest.raises(DriverFilesError, match=why):
        site.lay_out()
    assert not site.folder().usable


def test_a_file_that_changes_while_it_is_copied_is_not_taken(site: Site) -> None:
    layout = site.host().find_files()
    site.install(NEW)
    site.install(OLD)  # the same version, other files
    with pytest.raises(DriverFilesError, match="is being changed on the host"):
        site.folder().lay_out(layout, site.host().open)
    assert site.generations() == []


def test_another_architecture_has_no_driver(site: Site) -> None:
    with pytest.raises(DriverFilesError, match="architecture riscv64 is not supported"):
        Host(site.root, machine="riscv64").find_files()


def test_the_folder_comes_late_follows_the_host_and_outlives_its_driver(tmp_path: Path) -> None:
    host, results = Site(tmp_path), list[bool]()

    def make() -> DriverUpdater:
        return DriverUpdater(
            host.host(), host.folder(), idle=lambda: True, on_result=results.append
        )

    def uninstall() -> None:
        assert host.found() == expected("550.2")
        (host.root / "etc/ld.so.cache").unlink()

    updater = make()
    assert not updater.ready.is_set()
    steps = (lambda: host.install("535.1"), lambda: host.install("550.2"), uninstall)
    stop = CountedStop(4, *steps)
    updater.run(stop)
    assert results == [False, True, True, False]
    assert stop.waited == [5, 30, 30, 5]
    assert "there is no /etc/ld.so.cache" in updater.problem
    assert host.found() == expected("550.2")
    assert make().ready.is_set()


# --- the loader's list ----------------------------------------------------------------

CUDA = (X86_64, "libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1")
NAME = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=20)
ENTRIES = st.lists(st.tuples(st.sampled_from([X86_64, I386, 0x0A03, 0]), NAME, NAME), max_size=6)


@given(ENTRIES, st.booleans(), st.integers(0, 1))
def test_a_list_of_ldconfig_is_read(
    entries: list[tuple[int, str, str]], old: bool, hwcap: int
) -> None:
    listed = [(flags, name, f"/{path}") for flags, name, path in entries]
    expected = [Library(name, path, flags & 0xFF00) for flags, name, path in listed if flags & 1]
    found = parse_ldcache(ldcache(listed, old=old, hwcap=hwcap))
    assert list(found) == ([] if hwcap else expected)


@pytest.mark.parametrize("old", [False, True])
def test_a_list_that_is_cut_short_is_refused_wherever_it_ends(old: bool) -> None:
    whole = ldcache([CUDA], old=old)
    for end in range(len(whole)):
        with pytest.raises(DriverFilesError, match="run ldconfig on the host"):
            parse_ldcache(whole[:end])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(LARGEST + 1), "is longer than 16777216 bytes"),
        (b"\x7fELF" + bytes(60), "does not have the format of glibc, version 1.1"),
        (ldcache([CUDA]).replace(b"\x02", b"\x03", 1), "has the wrong byte order"),
        (ldcache([CUDA])[:20] + b"\xff" * 4 + bytes(40), "4294967295 libraries do not fit into it"),
        (ldcache([CUDA])[:48] + b"\x03" + bytes(23), "names a library outside of itself"),
    ],
)
def test_an_invalid_list_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(DriverFilesError) as caught:
        parse_ldcache(data)
    assert str(caught.value).startswith("driver-dir: /etc/ld.so.cache ")
    assert why in str(caught.value)


def test_a_library_that_cannot_be_named_is_skipped() -> None:
    odd = [(X86_64, "lib\udcff.so", "/a"), (X86_64, "a\n", "/b"), (X86_64, "liba.so", "b"), CUDA]
    assert [each.name for each in parse_ldcache(ldcache(odd))] == ["libcuda.so.1"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_the_list_of_this_machine_is_read_as_ldconfig_reads_it() -> None:
    ldconfig, cache = shutil.which("ldconfig", path="/sbin:/usr/sbin"), Path("/etc/ld.so.cache")
    if ldconfig is None or not cache.exists():
        pytest.skip("no ldconfig, or no list")
    printed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    expected = [
        (line.split()[0], line.partition(" => ")[2])
        for line in printed.splitlines()
        if " => " in line and "hwcap" not in line
    ]
    assert [(each.name, each.path) for each in parse_ldcache(cache.read_bytes())] == expected
