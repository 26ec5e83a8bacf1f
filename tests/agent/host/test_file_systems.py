"""Whether a folder's file system takes files: what statvfs says, without a write."""

import os
from pathlib import Path

import pytest

from agent.host.file_systems import is_writable

_BLOCK = 4096


def _file_system(blocks: int, files: int, flags: int = 0, all_files: int = 10) -> os.statvfs_result:
    """A file system of 100 blocks: how many blocks and files are free in it."""
    return os.statvfs_result((_BLOCK, _BLOCK, 100, blocks, 0, all_files, files, 0, flags, 255))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (_file_system(50, 5), True),
        (_file_system(0, 5), False),
        (_file_system(15, 5), False),  # less than 64 KiB
        (_file_system(50, 0), False),  # no inode is left
        (_file_system(50, 0, all_files=0), True),  # btrfs has no fixed number of inodes
        (_file_system(50, 5, os.ST_RDONLY), False),
    ],
)
def test_a_full_or_read_only_file_system_is_not_writable(
    found: os.statvfs_result, *, expected: bool, tmp_path: Path
) -> None:
    assert is_writable(tmp_path, lambda _: found) is expected


def test_real_folders_are_judged_as_they_are(tmp_path: Path) -> None:
    assert is_writable(tmp_path)
    assert not is_writable(tmp_path / "missing")
    assert not is_writable(Path("/proc"))  # a file system without space
