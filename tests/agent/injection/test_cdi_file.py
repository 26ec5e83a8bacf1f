"""Reading the host's CDI specs and writing ours, on a real disk."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import EnforcementError
from agent.injection.cdi import own_names, spec_document
from agent.injection.cdi_file import FILE_NAME, CdiFile
from agent.injection.inject import DriverFiles, shared_by_all
from contract.inventory import Inventory
from tests.agent.builders import card, raising

DATA = Path(__file__).parents[2] / "data" / "cdi"
TWO = Inventory((card(0), card(1)))
OURS = {"GPU-0": "gpu-turnstile.io/gpu=GPU-0", "GPU-1": "gpu-turnstile.io/gpu=GPU-1"}
THEIRS = {"GPU-0": "nvidia.com/gpu=GPU-0", "GPU-1": "nvidia.com/gpu=GPU-1"}
COMMON = shared_by_all(control_devices=["/dev/nvidiactl"])


class Host:
    def __init__(self, folder: Path) -> None:
        self.static = folder / "etc" / "cdi"
        self.dynamic = folder / "run" / "cdi"
        self.static.mkdir(parents=True)
        folders = self.static, self.dynamic
        self.problems: list[str] = []
        self.common = COMMON
        self.file = CdiFile(
            self.dynamic,
            common=lambda: self.common,
            host_dirs=folders,
            on_host_specs=self.problems.append,
        )

    def install(self, *, dynamic: bool = False) -> Path:
        folder = self.dynamic if dynamic else self.static
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(DATA / "nvidia.yaml", folder))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def content(host: Host) -> object:
    return json.loads(host.file.path.read_text())


def test_without_a_spec_of_the_host_ours_is_written_and_readable_for_all(host: Host) -> None:
    before = os.umask(0o077)
    try:
        assert host.file.refresh(TWO) == OURS == own_names(TWO)
    finally:
        os.umask(before)
    assert host.file.path == host.dynamic / "gpu-turnstile.json"
    assert content(host) == spec_document(TWO, COMMON)
    assert stat.S_IMODE(host.file.path.stat().st_mode) == 0o644
    assert [each.name for each in host.dynamic.iterdir()] == [FILE_NAME]


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: shutil.rmtree(path.parent),
        lambda path: path.write_bytes(b" " * path.stat().st_size),
        lambda path: path.chmod(0o600),
        _link,
    ],
    ids=["missing", "same length", "unreadable", "linked"],
)
def test_missing_or_changed_files_are_written_again(
    host: Host, damage: Callable[[Path], object]
) -> None:
    host.file.refresh(TWO)
    damage(host.file.path)
    assert host.file.refresh(TWO) == OURS
    assert content(host) == spec_document(TWO, COMMON)
    assert stat.S_ISREG(host.file.path.lstat().st_mode)
    assert stat.S_IMODE(host.file.path.stat().st_mode) == 0o644


FULL = raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_a_disk_error_is_a_refusal_and_loses_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.file.refresh(Inventory(())) == {}
    assert not host.dynamic.exists()  # without a card there is no spec
    host.file.refresh(TWO)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", FULL)
        assert host.file.refresh(TWO) == OURS  # nothing has changed: nothing is written
        with pytest.raises(EnforcementError) as refused:
            host.file.refresh(Inventory((card(0),)))
    assert str(refused.value) == (
        "cdi-dir: cannot write the CDI spec of this node's cards: No space left on device: "
        "the node's admin must free space there"
    )
    assert content(host) == spec_document(TWO, COMMON)
    assert host.file.refresh(TWO) == OURS


def _as_json(host: Host) -> None:
    document = spec_document(TWO, COMMON) | {"kind": "nvidia.com/gpu"}
    (host.static / "nvidia.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "install",
    [
        Host.install,
        lambda host: host.install(dynamic=True),
        _as_json,
        lambda host: _link(host.install()),
    ],
    ids=["static", "dynamic", "json", "link"],
)
def test_the_hosts_own_spec_is_used_and_ours_not_written(
    host: Host, install: Callable[[Host], object]
) -> None:
    install(host)
    assert host.file.refresh(TWO) == THEIRS
    assert not host.file.path.exists()


def test_a_spec_added_to_the_host_is_used_and_ours_stays_valid_for_its_containers(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet starts a container again with its first response (fact K12)."""
    host.file.refresh(TWO)
    installed = host.install()
    assert host.file.refresh(TWO) == THEIRS
    assert content(host) == spec_document(TWO, COMMON)
    host.file.path.write_text("{}")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", FULL)
        assert host.file.refresh(TWO) == THEIRS  # an old spec that cannot be updated delays no call
    assert "old CDI spec not updated" in caplog.messages
    assert host.file.refresh(TWO) == THEIRS
    assert content(host) == spec_document(TWO, COMMON)
    installed.unlink()
    assert host.file.refresh(TWO) == OURS


def test_why_the_hosts_specs_are_not_used_is_reported_once_with_files_that_are_not_read(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    path = host.install()
    shutil.copy(path, path.with_suffix(".yml"))
    path.write_text("devices: [")
    for _ in range(2):
        assert host.file.refresh(TWO) == OURS
    (problem,) = host.problems
    first, unreadable, suffix = problem.split("; ")
    assert first == "no spec of kind nvidia.com/gpu"
    assert unreadable.startswith(f"{path}: ")
    assert suffix == f"{path.with_suffix('.yml')}: container runtimes read only .json and .yaml"
    (logged,) = (each for each in caplog.records if "not used" in each.getMessage())
    assert vars(logged)["reason"] == problem
    path.with_suffix(".yml").rename(path)
    assert host.file.refresh(TWO) == THEIRS
    assert host.problems[1:] == [""]
    path.unlink()
    host.common = shared_by_all(driver=DriverFiles("/opt/nvidia"))
    assert host.file.refresh(TWO) == OURS
    assert host.problems[2:] == []  # ours has the driver's files


def test_a_spec_that_changes_is_read_again_and_one_that_does_not_is_not(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = host.install()
    read: list[Path] = []

    def text(path: Path) -> str:
        read.append(path)
        return path.read_text()

    monkeypatch.setattr("agent.injection.cdi_file._text", text)
    for _ in range(3):
        assert host.file.refresh(TWO) == THEIRS
    assert read == [path]
    path.write_text(path.read_text().replace("name: GPU-1", "name: GPU-2"))
    assert host.file.refresh(TWO) == {"GPU-0": "nvidia.com/gpu=0", "GPU-1": "nvidia.com/gpu=1"}
    assert read == [path, path]


HOSTILE = {
    "empty.json": b"",
    "list.json": b"[]",
    "deep.json": b"[" * 100_000,
    "number.json": b"9" * 10_000,
    "bytes.yaml": b"\xff\xfe\x00kind",
    "tag.yaml": b"!!python/object/apply:os.system [exit]",
    "bomb.yaml": b"a: &a [x,x]\nb: &b [*a,*a]\ncdiVersion: 0.5.0\nkind: n.com/gpu\ndevices: *b\n",
    "name.yaml": b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: ../../etc}]\n",
}


def test_malformed_and_hostile_specs_are_skipped_and_logged_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for name, data in HOSTILE.items():
        (host.static / name).write_bytes(data)
    (host.static / "large.json").write_bytes(b" " * (1 << 20))
    (host.static / "folder.json").mkdir()
    os.mkfifo(host.static / "pipe.yaml")
    (host.static / "zero.json").symlink_to("/dev/zero")
    (host.static / "loop.json").symlink_to("loop.json")
    (host.static / "dangling.json").symlink_to("nothing")
    (host.static / "notes.txt").write_text("[")
    host.install()
    for _ in range(2):
        assert host.file.refresh(TWO) == THEIRS
    names = [Path(vars(each)["path"]).name for each in caplog.records]
    others = ("large", "folder", "zero", "loop", "dangling")
    assert sorted(names) == sorted([*HOSTILE, "pipe.yaml", *(f"{each}.json" for each in others)])


def test_a_directory_that_cannot_be_listed_is_reported(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", raising(PermissionError("denied")))
        assert host.file.refresh(TWO) == OURS
    assert "cannot list CDI specs" in caplog.messages


def test_a_file_that_has_grown_since_its_size_was_read_is_not_read_to_its_end(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = host.static / "grows.json"
    path.write_bytes(b" " * (1 << 20))
    monkeypatch.setattr("agent.injection.cdi_file._state", lambda _path: (1, 1, 1, 1))
    assert host.file.refresh(TWO) == OURS
    assert "CDI spec of the host ignored" in caplog.messages
