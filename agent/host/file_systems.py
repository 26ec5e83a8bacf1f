"""Whether files can be written into a folder, as its file system reports it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

_LEAST_BYTES = 2**16
"""More than all files of one container need."""


def find_write_problem(folder: Path, read: Callable[[Path], os.statvfs_result] = os.statvfs) -> str:
    """Return why files cannot be written into a folder; empty if they can.

    Nothing is written. Quotas are not seen. The agent is root, and may use reserved space.
    """
    try:
        found = read(folder)
    except OSError as error:
        return error.strerror or str(error)
    if found.f_flag & os.ST_RDONLY:
        return os.strerror(errno.EROFS)
    if found.f_bfree * found.f_frsize < _LEAST_BYTES:
        return os.strerror(errno.ENOSPC)
    if found.f_files and not found.f_ffree:
        return f"{os.strerror(errno.ENOSPC)}: no inode is free"
    return ""
