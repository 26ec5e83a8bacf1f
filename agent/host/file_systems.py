"""Whether files can be written into a folder, as its file system reports it."""

import os
from collections.abc import Callable
from pathlib import Path

_LEAST_BYTES = 2**16
"""More than all files of one container need."""


def is_writable(folder: Path, read: Callable[[Path], os.statvfs_result] = os.statvfs) -> bool:
    """Return whether a folder exists, and its file system is writable and has space.

    Nothing is written. Quotas are not seen. The agent is root, and may use reserved space.
    """
    try:
        found = read(folder)
    except OSError:
        return False
    full = found.f_bfree * found.f_frsize < _LEAST_BYTES or (found.f_files and not found.f_ffree)
    return not full and not found.f_flag & os.ST_RDONLY
