"""Directories held by their descriptors: what is in them, and changes that are made at once.

Names are names in a directory, never paths, and are never followed where they are links. A
file is made under another name and renamed, so that whoever reads it, and whoever finds
it after the agent was killed, has the old one or the new.

Here ``OSError`` means what the kernel said; the caller tells whose problem that is.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe holds nobody up
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def names(folder: int) -> list[str]:
    """Return what is in a directory, in order."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def open_folder(name: str, parent: int) -> int:
    """Open a directory in another; the descriptor is the caller's to close."""
    return os.open(name, _FOLDER, dir_fd=parent)


@contextlib.contextmanager
def opened(name: str, parent: int) -> Iterator[int]:
    """Open a directory in another for a while."""
    folder = open_folder(name, parent)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def opened_path(path: Path) -> Iterator[int]:
    """Open a directory of ours by its path, made where it is missing.

    It may be a link: it is the admin's.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def read(folder: int, name: str, most: int) -> bytes | None:
    """Read a file of *most* bytes at most; ``None`` where there is none, or something else is."""
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
    """Make a directory that everybody may read, whatever the umask, unless it is there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    with opened(name, parent) as made:
        os.fchmod(made, 0o755)


def replace(
    folder: int, files: Mapping[str, bytes], mode: int = 0o644, *, synced: bool = False
) -> None:
    """Put each of *files*, content by name, replacing what has its name."""
    for name, data in files.items():
        beside = f".{name}.new"
        remove(folder, beside)
        file = os.open(beside, _NEW, mode, dir_fd=folder)
        try:
            os.fchmod(file, mode)  # whatever the umask
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            if synced:
                os.fsync(file)
        finally:
            os.close(file)
        try:
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:  # nothing of ours: a file is what belongs here
            remove(folder, name)
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(folder: int, name: str) -> None:
    """Remove whatever has that name, if anything has; a link itself, not what it names."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
