"""Files in an open directory with hostile entries, its file system, and the state file."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import directories as folders
from agent.host.file_systems import find_write_problem
from agent.host.state_file import StateFile
from tests.agent.builders import raising


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def test_a_file_is_read_up_to_so_many_bytes(tmp_path: Path, held: int) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert folders.read(held, "file", 3) == b"123"
    assert folders.read(held, "file", 9) == b"12345"


def test_a_path_that_is_no_file_is_not_read(
    tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)
        bound.bind("socket")  # a whole path may be too long for a socket
        for name in ("folder", "link", "pipe", "socket", "none"):
            assert folders.read(held, name, 10) is None, name
    with pytest.raises(OSError, match="File name too long"):  # an error, and not nothing
        folders.read(held, "x" * 300, 10)


def test_an_open_file_is_replaced_and_not_changed(tmp_path: Path, held: int) -> None:
    """A reader has the old one or the new, never half of each."""
    (tmp_path / "file").write_bytes(b"old")
    with (tmp_path / "file").open("rb") as reader:
        folders.replace(held, {"file": b"new", "other": b"x" * 100_000}, mode=0o600)
        assert reader.read() == b"old"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len((tmp_path / "other").read_bytes()) == 100_000
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert folders.names(held) == ["file", "other"]


def test_an_obstacle_to_a_file_is_removed_and_no_link_is_followed(
    tmp_path: Path, held: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "other"
    other.write_bytes(b"mine")
    (tmp_path / "link").symlink_to(other)
    (tmp_path / ".link.new").symlink_to(other)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "leaf").touch()
    (tmp_path / ".tree.new").mkdir()
    folders.replace(held, {"link": b"1", "tree": b"2"})
    assert other.read_bytes() == b"mine"
    assert folders.names(held) == ["link", "tree"]
    assert not (tmp_path / "link").is_symlink()


# --- its file system -------------------------------------------------------------------

_BLOCK = 4096


def _file_system(blocks: int, files: int, flags: int = 0, all_files: int = 10) -> os.statvfs_result:
    """A file system of 100 blocks: how many blocks and files are free in it."""
    return os.statvfs_result((_BLOCK, _BLOCK, 100, blocks, 0, all_files, files, 0, flags, 255))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (_file_system(50, 5), ""),
        (_file_system(0, 5), "No space left on device"),
        (_file_system(15, 5), "No space left on device"),  # less than 64 KiB
        (_file_system(50, 0), "No space left on device: no inode is free"),
        (_file_system(50, 0, all_files=0), ""),  # btrfs has no fixed number of inodes
        (_file_system(0, 5, os.ST_RDONLY), "Read-only file system"),
    ],
)
def test_a_full_or_read_only_file_system_is_not_writable(
    found: os.statvfs_result, expected: str, tmp_path: Path
) -> None:
    assert find_write_problem(tmp_path, lambda _: found) == expected


def test_real_folders_are_judged_as_they_are(tmp_path: Path) -> None:
    assert find_write_problem(tmp_path) == ""
    assert find_write_problem(tmp_path / "missing") == "No such file or directory"
    assert find_write_problem(Path("/proc")) == "No space left on device"


# --- a small file that survives the agent ---------------------------------------------

NOT_WRITTEN = "state file cannot be written"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "current-pod.json"


def test_the_next_agent_reads_the_last_saved_text(path: Path) -> None:
    """An open old file stays whole, and an agent that is killed while it writes changes nothing."""
    file = StateFile(path)
    assert file.load() == ""
    before = os.umask(0)
    try:
        file.save("old, and longer")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(encoding="utf-8") as reader:
        file.save("new")
        assert reader.read() == "old, and longer"
    path.with_name(f".{path.name}.new").write_text("half of the ne", encoding="utf-8")
    assert StateFile(path).load() == "new"
    file.save("newer")
    assert file.load() == "newer"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None], ids=["not UTF-8", "a folder"])
def test_an_unreadable_file_is_logged_and_ignored(
    path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert StateFile(path).load() == ""
    assert caplog.messages == ["state file cannot be read"]


def test_a_link_instead_of_the_file_is_replaced_and_one_beside_it_is_not_followed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = path.parent / "other"
    other.write_text("of another program", encoding="utf-8")
    path.symlink_to(other)
    file = StateFile(path)
    file.save("ours")
    assert file.load() == "ours"
    assert not path.is_symlink()
    path.with_name(f".{path.name}.new").symlink_to(other)
    file.save("ours again")
    assert NOT_WRITTEN in caplog.messages
    assert other.read_text(encoding="utf-8") == "of another program"


def test_a_full_disk_is_logged_once_and_leaves_no_outdated_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    file = StateFile(path)
    file.save("old")
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        for text in ("new", "newer"):
            file.save(text)
    assert caplog.messages == [NOT_WRITTEN]
    assert vars(caplog.records[0])["reason"] == "[Errno 28] No space left on device"
    assert not path.exists()
    file.save("again")
    assert file.load() == "again"
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        file.save("lost")
    assert caplog.messages == [NOT_WRITTEN] * 2
