"""Steps in a directory that is held open, with traps laid in it."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import directories as folders


@pytest.fixture
def held(folder: Path) -> Iterator[int]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def test_a_file_is_read_up_to_so_many_bytes(folder: Path, held: int) -> None:
    (folder / "file").write_bytes(b"12345")
    assert folders.read(held, "file", 3) == b"123"
    assert folders.read(held, "file", 9) == b"12345"


def test_a_path_that_is_no_file_is_not_read(folder: Path, held: int) -> None:
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        for name in ("folder", "link", "pipe", "socket", "none"):
            assert folders.read(held, name, 10) is None, name
    with pytest.raises(OSError, match="File name too long"):  # an error, and not nothing
        folders.read(held, "x" * 300, 10)


def test_a_file_that_was_open_is_left_as_it_was(folder: Path, held: int) -> None:
    """Whoever reads has the old one or the new, never half of each."""
    (folder / "file").write_bytes(b"old")
    with (folder / "file").open("rb") as reader:
        folders.replace(held, {"file": b"new", "other": b"x" * 100_000}, mode=0o600)
        assert reader.read() == b"old"
    assert (folder / "file").read_bytes() == b"new"
    assert len((folder / "other").read_bytes()) == 100_000
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o600
    assert folders.names(held) == ["file", "other"]


def test_an_obstacle_to_a_file_is_removed_and_no_link_is_followed(
    folder: Path, held: int, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (folder / "link").symlink_to(precious)
    (folder / ".link.new").symlink_to(precious)
    (folder / "tree").mkdir()
    (folder / "tree" / "leaf").touch()
    (folder / ".tree.new").mkdir()
    folders.replace(held, {"link": b"1", "tree": b"2"})
    assert precious.read_bytes() == b"mine"
    assert folders.names(held) == ["link", "tree"]
    assert not (folder / "link").is_symlink()
