"""The settings of HAMi-core and its files, on a real disk."""

import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.allocator.slot_holdings import key_of
from agent.enforcement.hami import HamiCore
from agent.enforcement.hami_library import HamiLibrary
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, ContainerRef, Holding
from tests.agent.builders import BLOCK, device_table, holding, ids, pod_id, raising, write_hami_core

POD = pod_id("p")
CLAIM = ContainerRef(POD, "c0")
SHARE_IDS = ids("GPU-0", range(30))
WHOLE_IDS = ids("GPU-0", range(100)) | ids("GPU-1", range(100))
WHOLE = holding(CLAIM, WHOLE_IDS)
UNKNOWN_SHARE = holding(UNKNOWN, SHARE_IDS)
SHARE = holding(CLAIM, SHARE_IDS)


def memory(*blocks: int) -> Holding:
    return holding(CLAIM, (), {f"GPU-{at}": each for at, each in enumerate(blocks)})


class HamiHost:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.library = folder / "vgpu" / "libvgpu.so"
        self.library.parent.mkdir()
        write_hami_core(self.library)
        self.outdated: list[bool] = []
        self.problems: list[str] = []
        self.hami = self.agent()

    def agent(self, *bus_ids: str) -> HamiCore:
        """An agent that knows the PCI addresses of the first cards."""
        cards = device_table(len(bus_ids)).inventory.cards
        return HamiCore(
            state_dir=self.state,
            library=HamiLibrary(
                self.library.parent,
                on_outdated=self.outdated.append,
                on_problem=self.problems.append,
            ),
            block=BLOCK,
            cards=[
                replace(card, bus_id=bus_id) for card, bus_id in zip(cards, bus_ids, strict=True)
            ],
        )

    def shared(self, ids: frozenset[str]) -> Path:
        return self.state / "tickets" / key_of(ids) / "files" / "shared.cache"

    @property
    def preload(self) -> Path:
        return self.state / "hami-core" / "ld.so.preload"

    @property
    def loading(self) -> tuple[Mount, ...]:
        return (
            Mount("/usr/local/vgpu/libvgpu.so", str(self.library), read_only=True),
            Mount("/etc/ld.so.preload", str(self.preload), read_only=True),
        )

    def shared_mount(self, ids: frozenset[str]) -> Mount:
        return Mount("/usr/local/vgpu/shared.cache", str(self.shared(ids)), read_only=False)

    def core(self) -> ContainerEdits:
        return self.hami.prepare_allocation(SHARE)


@pytest.fixture
def node(tmp_path: Path) -> HamiHost:
    return HamiHost(tmp_path)


def test_the_response_for_cores_of_a_share_limits_compute(node: HamiHost) -> None:
    assert node.core() == ContainerEdits(
        {
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/shared.cache",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "GPU_CORE_UTILIZATION_POLICY": "FORCE",
        },
        mounts=(node.shared_mount(SHARE_IDS), *node.loading),
    )
    # Only a file that nothing reads: core IDs do not show whether memory is requested.
    whole = node.hami.prepare_allocation(WHOLE)
    assert whole == ContainerEdits(mounts=(node.shared_mount(WHOLE_IDS),))


def test_a_share_of_several_cards_is_limited_to_its_part_of_each(node: HamiHost) -> None:
    both = ids("GPU-0", range(60)) | ids("GPU-1", range(60))
    cores = node.hami.prepare_allocation(holding(CLAIM, both))
    assert cores.envs["CUDA_DEVICE_SM_LIMIT"] == "60"
    assert node.shared_mount(both) in cores.mounts
    assert node.hami.prepare_allocation(memory(3, 2)).envs == {
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/shared.cache",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "768m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "512m",
        "CUDA_DEVICE_MEMORY_LIMIT": "512m",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


@pytest.mark.parametrize(
    ("bus_ids", "limits"),
    [
        (("0000:3b:00.0", "0000:0F:00.0", "0000:07:00.0"), "256m 512m 768m"),
        (("00000001:00:00.0", "0:ff:00.0", "0000:07:1f.0"), "256m 512m 768m"),
        (("0000:3b:00.0", "", "0000:07:00.0"), "768m 512m 256m"),
    ],
    ids=["another order", "by number, not by text", "one not known"],
)
def test_limits_are_numbered_as_cuda_does_by_pci_address(
    bus_ids: tuple[str, ...], limits: str, node: HamiHost
) -> None:
    """Of the container's cards, not of the node's; by index where an address is not known."""
    edits = node.agent(*bus_ids, "0000:01:00.0").prepare_allocation(memory(3, 2, 1))
    assert " ".join(edits.envs[f"CUDA_DEVICE_MEMORY_LIMIT_{at}"] for at in range(3)) == limits
    assert edits.envs["CUDA_DEVICE_MEMORY_LIMIT"] == "256m"
    assert edits.envs["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_library_that_is_too_old_is_reported_for_each_new_file(
    node: HamiHost, caplog: pytest.LogCaptureFixture
) -> None:
    node.hami.open()
    node.core()
    node.core()
    assert node.outdated == [True]
    write_hami_core(node.library, b"Waiting for postinit lock (trial %d/%d)")
    node.core()
    assert node.outdated == [True, False]
    write_hami_core(node.library, b"older")
    node.core()
    assert node.outdated == [True, False, True]
    node.library.unlink()
    node.hami.open()
    assert node.outdated == [True, False, True]
    assert caplog.messages == [*["HAMi-core is outdated"] * 2, "HAMi-core cannot be used"]


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (Path.touch, "the file is empty"),
        (lambda path: path.write_text("see README"), "the file is not in the format of a library"),
        (lambda path: path.write_bytes(b"\x7fELF"), "the file is not in the format of a library"),
        (
            lambda path: write_hami_core(path, machine=8),  # MIPS
            "the library is for another architecture: ELF machine 8, must be ",
        ),
        (lambda path: write_hami_core(path, kind=1), "the file is not a shared library"),
        (
            lambda path: write_hami_core(path, reads=False),
            "the library does not read CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT",
        ),
    ],
)
def test_a_file_that_is_no_hami_core_is_reported_at_the_start_and_no_share_starts(
    node: HamiHost, write: Callable[[Path], object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The loader would ignore it, and programs would run without limits."""
    node.library.unlink()
    write(node.library)
    node.hami.open()
    node.hami.prune(())
    text = (
        "hami-library-dir: the node's libvgpu.so is no HAMi-core, which enforces the limits of "
        f"containers: {why}"
    )
    (line,) = caplog.records
    assert (line.getMessage(), vars(line)["path"]) == (
        "HAMi-core cannot be used",
        str(node.library),
    )
    assert vars(line)["reason"].startswith(text)
    assert node.problems[-1].startswith(text)
    assert node.problems[-1].endswith(f"the node's admin must install HAMi-core ({node.library})")
    with pytest.raises(EnforcementError, match=re.escape(text)):
        node.core()
    write_hami_core(node.library)
    node.hami.prune(())
    assert node.problems[-1] == ""


def test_settings_in_both_responses_are_equal(node: HamiHost) -> None:
    """The kubelet takes from either, in the order of a Go map."""
    core, held = node.core(), node.hami.prepare_allocation(memory(4))
    assert core.merged_with(held).envs == held.merged_with(core).envs
    assert set(core.merged_with(held).mounts) == set(held.merged_with(core).mounts)
    assert len(core.merged_with(held).mounts) == 3


def test_memory_on_more_cards_than_hami_core_knows_is_refused(node: HamiHost) -> None:
    assert "CUDA_DEVICE_MEMORY_LIMIT_15" in node.hami.prepare_allocation(memory(*[1] * 16)).envs
    with pytest.raises(EnforcementError) as refused:
        node.hami.prepare_allocation(memory(*[1] * 17))
    assert str(refused.value) == (
        "memory on 17 cards, but HAMi-core limits at most 16: request whole cards without memory"
    )


def test_mounted_files_exist_and_only_the_shared_file_can_be_written(node: HamiHost) -> None:
    before = os.umask(0o077)
    try:
        edits = node.core()
    finally:
        os.umask(before)
    modes = {each.container: Path(each.host).stat() for each in edits.mounts}
    assert all(stat.S_ISREG(each.st_mode) for each in modes.values())
    assert stat.S_IMODE(modes["/usr/local/vgpu/shared.cache"].st_mode) == 0o666
    assert stat.S_IMODE(modes["/etc/ld.so.preload"].st_mode) == 0o644
    assert node.preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert stat.S_IMODE(node.preload.parent.stat().st_mode) & 0o022 == 0
    assert {each.container for each in edits.mounts if not each.read_only} == {
        "/usr/local/vgpu/shared.cache"
    }


def test_every_start_gets_a_new_shared_file_and_a_lingering_container_keeps_its_own(
    node: HamiHost,
) -> None:
    """An init container with more memory may have written its limits there (fact K7)."""
    node.core()
    path = node.shared(SHARE_IDS)
    with path.open("r+b") as lingering:
        lingering.write(b"limits of old")
        lingering.flush()
        node.hami.prepare_start(SHARE)
        assert path.read_bytes() == b""
        lingering.write(b", and more")
        lingering.flush()
        assert path.read_bytes() == b""
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_start_of_an_unknown_container_uses_existing_files_or_is_retried(
    node: HamiHost,
) -> None:
    node.core()
    node.shared(SHARE_IDS).write_bytes(b"old")
    node.hami.prepare_start(UNKNOWN_SHARE)
    assert node.shared(SHARE_IDS).read_bytes() == b""
    (node.state / "tickets" / f".new-{'0' * 20}").mkdir()
    node.agent().open()
    assert [each.name for each in (node.state / "tickets").iterdir()] == [key_of(SHARE_IDS)]
    node.hami.prune([POD])
    assert node.shared(SHARE_IDS).exists()
    node.hami.prune([])
    with pytest.raises(EnforcementError) as refused:
        node.hami.prepare_start(UNKNOWN_SHARE)
    assert str(refused.value) == (
        "the files that this container mounts are missing on the node's disk, and their owner is "
        "not known yet: the start will be retried"
    )


MISSING = (
    "hami-library-dir: the node has no libvgpu.so, which enforces the limits of containers: "
    "the node's admin must install HAMi-core"
)


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_without_the_library_nothing_limited_is_promised_or_started(
    node: HamiHost, kind: str
) -> None:
    """A runtime would mount an empty directory instead, and nothing would be limited."""
    node.core()
    node.library.unlink()
    if kind == "folder":
        node.library.mkdir()
    acts: tuple[Callable[[], object], ...] = (
        node.core,
        lambda: node.hami.prepare_allocation(memory(4)),
        lambda: node.hami.prepare_start(SHARE),
        lambda: node.hami.prepare_start(UNKNOWN_SHARE),
    )
    for act in acts:
        with pytest.raises(EnforcementError) as refused:
            act()
        assert str(refused.value) == MISSING
    uncapped = node.hami.prepare_allocation(WHOLE)  # nothing is limited
    node.hami.prepare_start(WHOLE)
    assert uncapped.envs == {}
    assert Path(uncapped.mounts[0].host).is_file()


def test_a_file_that_names_the_library_is_written_when_it_differs(node: HamiHost) -> None:
    node.core()
    before = node.preload.stat()
    node.core()
    assert node.preload.stat().st_mtime_ns == before.st_mtime_ns
    node.preload.write_text("/tmp/other.so\n")
    node.core()
    assert node.preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"


def test_an_impossible_state_directory_is_a_refusal(node: HamiHost) -> None:
    node.state.write_text("")
    with pytest.raises(EnforcementError, match=r"^state-dir: cannot "):
        node.core()
    text = "^state-dir: cannot make the limits of this container: Not a directory: see the agent's"
    with pytest.raises(EnforcementError, match=text):
        node.hami.prepare_allocation(memory(4))


def test_a_disk_error_is_a_refusal_and_existing_files_stay(
    node: HamiHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.core()
    node.shared(SHARE_IDS).write_bytes(b"limits")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fchmod", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(EnforcementError) as refused:
            node.hami.prepare_start(SHARE)
    assert str(refused.value) == (
        "state-dir: cannot write the limits of this container: No space left on device: "
        "the node's admin must free space there"
    )
    assert node.shared(SHARE_IDS).read_bytes() == b"limits"
    node.hami.prepare_start(SHARE)
    assert stat.S_IMODE(node.shared(SHARE_IDS).stat().st_mode) == 0o666


def test_a_share_of_a_mig_instance_has_a_limit_of_memory_only(node: HamiHost) -> None:
    """The library throttles by the use of processes, which NVML does not return there."""
    ids = frozenset(f"MIG-0::{number}" for number in range(30))
    edits = node.hami.prepare_allocation(holding(CLAIM, ids))
    assert edits.envs == {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/shared.cache"}
    assert edits.mounts == (node.shared_mount(ids), *node.loading)
    held = holding(CLAIM, (), {"MIG-0": 3})
    envs = node.hami.prepare_allocation(held).envs
    assert envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "768m"


def test_directories_that_cannot_be_removed_now_are_removed_later(
    node: HamiHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.core()
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", raising(OSError(errno.EIO, "broken")))
        node.hami.prune([])
    assert caplog.messages[-1] == "container directories not removed"
    node.hami.prune([])
    assert list((node.state / "tickets").iterdir()) == []
