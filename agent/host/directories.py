"""Directories, by their descriptors: listing, and atomic changes.

Names are names in a directory, never paths, and links are never followed. A file is written under
a temporary name and renamed, so a reader finds the old one or the new one, even if the agent was
killed.

``OSError`` is raised as the kernel reports it; callers translate it.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe must not block
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def names(folder: int) -> list[str]:
    """Return the names in a directory, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def open_folder(name: str, parent: int) -> int:
    """Open a directory in another; the caller closes the descriptor."""
    return os.open(name, _FOLDER, dir_fd=parent)


@contextlib.contextmanager
def opened(name: str, parent: int) -> Iterator[int]:
    """Open a directory in another; close it at the end of the ``with`` block."""
    folder = open_folder(name, parent)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def opened_path(path: Path) -> Iterator[int]:
    """Open a directory of the agent by its path; make it if it is missing.

    It may be a link, since the admin has set the path.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def read(folder: int, name: str, most: int) -> bytes | None:
    """Read at most *most* bytes of a file; ``None`` if it is missing or not a regular file."""
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, or a socket
            return None
        raise
    try:
        return os.read(file, most) if stat.S_ISREG(os.fstat(file).st_mode) else None
    finally:
        os.close(file)


def make(name: str, parent: int) -> None:
    """Make a directory unless it exists; every user may read it, whatever the umask."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    with opened(name, parent) as made:
        os.fchmod(made, 0o755)


def replace(
    folder: int, files: Mapping[str, bytes], mode: int = 0o644, *, synced: bool = False
) -> None:
    """Write *files*, content by name; each replaces any entry with its name."""
    for name, data in files.items():
        temporary = f".{name}.new"
        remove(folder, temporary)
        file = os.open(temporary, _NEW, mode, dir_fd=folder)
        try:
            os.fchmod(file, mode)  # whatever the umask
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            if synced:
                os.fsync(file)
        finally:
            os.close(file)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:  # a directory with that name is not the agent's
            remove(folder, name)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(folder: int, name: str) -> None:
    """Remove the entry with that name, if there is one; of a link the link itself."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
