"""The folder of driver files: a generation for each driver, and a link to the present one.

::

    <base>/current -> 550.54.15-1f2e3d4c5b6a      mounted into containers
    <base>/550.54.15-1f2e3d4c5b6a/{bin,lib,lib64}
    <base>/535.129.03-a1b2c3d4e5f6/...            still mounted in containers that began with it
    <base>/.535.129.03-a1b2c3d4e5f6.retired       the boot in which it was replaced

A generation is made under another name and renamed when it is whole and on disk, and the link is
replaced by a rename: whoever looks, and whoever looks after the agent was killed at any step,
finds the old driver whole or the new one whole. A running container keeps the folder that it was
started with; one that is started again gets that of today.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.driver.layout import HostFile, Layout
from agent.errors import DriverFilesError
from agent.host.directories import names, opened, opened_path, read, remove, replace

FOLDERS = ("bin", "lib", "lib64")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCK = ".lock"
_RETIRED = ".retired"
_SCRAP = (".new", ".gone")  # what a killed agent may leave
_CHUNK = 1 << 24
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LONGEST_BOOT_ID = 64
_MOST_REPAIRS = 100

_ADVICE = {
    errno.ENOSPC: "free space there: the files of a driver take up to 1 GiB",
    errno.EDQUOT: "free space there: the files of a driver take up to 1 GiB",
    errno.EROFS: "put --state-dir on a file system that can be written",
}


class DriverFolder:
    """The generations of driver files beside *link*. For one thread of each agent of a node."""

    def __init__(self, link: Path) -> None:
        self._base, self._name = link.parent, link.name

    @property
    def usable(self) -> bool:
        """Whether containers find a driver, the host's present one or an older one."""
        return all((self._base / self._name / each).is_dir() for each in FOLDERS)

    def lay_out(self, layout: Layout, open_source: Callable[[HostFile], int]) -> bool:
        """Make the link lead to a generation with *layout*; return whether anything was changed.

        Does nothing while another agent of the node changes the folder. *open_source* opens a
        file of the host.

        Raises:
            DriverFilesError: a file is not as it was, or the disk does not let us.
        """
        with self._changing() as base:
            if base is None:
                return False
            for each in names(base):
                if each.startswith(".") and each.endswith(_SCRAP):
                    remove(base, each)
            name = self._whole(base, layout) or self._make(base, layout, open_source)
            if self._link(base) == name:
                return False
            self._switch(base, name)
            return True

    def prune(self, *, idle: bool) -> list[str]:
        """Remove generations that no container can have any more; return their names.

        A generation that was replaced before the last boot has no container left: those that
        were started again since have that of today. Else it is removed while *idle*: no container
        of the node has a GPU.

        Raises:
            DriverFilesError: the disk does not let us.
        """
        removed: list[str] = []
        with self._changing() as base:
            if base is None:
                return removed
            current, boot = self._link(base), _boot_id()
            for name in names(base):
                if (
                    name.startswith(".")
                    or name in (self._name, current)
                    or not _is_folder(base, name)
                ):
                    continue
                retired = read(base, f".{name}{_RETIRED}", _LONGEST_BOOT_ID)
                if retired is None:  # the note was lost
                    replace(base, {f".{name}{_RETIRED}": boot})
                if idle or (retired is not None and retired != boot):
                    # Away at once: what is left of it must not be taken for a whole one.
                    os.rename(name, f".{name}.gone", src_dir_fd=base, dst_dir_fd=base)
                    remove(base, f".{name}.gone")
                    remove(base, f".{name}{_RETIRED}")
                    removed.append(name)
        return removed

    @contextlib.contextmanager
    def _changing(self) -> Iterator[int | None]:
        """Hold the folder for this process; ``None`` where another one holds it."""
        try:
            with opened_path(self._base) as base:
                lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=base)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield None
                else:
                    yield base
                finally:
                    os.close(lock)
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "the node's admin must see to it")
            raise DriverFilesError(
                f"driver-dir: cannot lay out {self._base}: {error.strerror}: {advice}"
            ) from error

    def _whole(self, base: int, layout: Layout) -> str | None:
        """Return the generation that has just this content, if there is one."""
        wanted: dict[str, int | str] = {path: each.size for path, each in layout.files.items()}
        wanted |= layout.links
        for name in names(base):
            if name == layout.name or name.startswith(f"{layout.name}~"):
                with contextlib.suppress(OSError), opened(name, base) as folder:
                    if _content(folder) == wanted:
                        return name
        return None

    def _make(self, base: int, layout: Layout, open_source: Callable[[HostFile], int]) -> str:
        """Make a generation; return its name."""
        there = set(names(base))
        # One that somebody has damaged may still be mounted: its name is not used again.
        name = next(
            each
            for each in (layout.name, *(f"{layout.name}~{n}" for n in range(2, _MOST_REPAIRS)))
            if each not in there
        )
        beside = f".{name}.new"
        try:
            os.mkdir(beside, 0o755, dir_fd=base)
            with opened(beside, base) as made:
                os.fchmod(made, 0o755)
                self._fill(made, layout, open_source)
            os.rename(beside, name, src_dir_fd=base, dst_dir_fd=base)
            os.fsync(base)
        except BaseException:
            remove(base, beside)
            raise
        return name

    def _fill(self, made: int, layout: Layout, open_source: Callable[[HostFile], int]) -> None:
        for name in FOLDERS:
            os.mkdir(name, 0o755, dir_fd=made)
            with opened(name, made) as folder:
                os.fchmod(folder, 0o755)
                for path, source in sorted(layout.files.items()):
                    if path.startswith(f"{name}/"):
                        _copy(open_source(source), folder, path.partition("/")[2], source.size)
                for path, target in sorted(layout.links.items()):
                    if path.startswith(f"{name}/"):
                        os.symlink(target, path.partition("/")[2], dir_fd=folder)
                os.fsync(folder)
        os.fsync(made)

    def _switch(self, base: int, name: str) -> None:
        """Replace the link by one to another generation."""
        before = self._link(base)
        if before is not None:
            replace(base, {f".{before}{_RETIRED}": _boot_id()})
        if _is_folder(base, self._name):  # made by a container runtime that found no link
            os.rmdir(self._name, dir_fd=base)
        beside = f".{self._name}.new"
        remove(base, beside)
        os.symlink(name, beside, dir_fd=base)
        os.rename(beside, self._name, src_dir_fd=base, dst_dir_fd=base)
        os.fsync(base)

    def _link(self, base: int) -> str | None:
        try:
            return os.readlink(self._name, dir_fd=base)
        except OSError:  # none, or no link
            return None


def _copy(file: int, folder: int, name: str, size: int) -> None:
    """Copy a file that has *size* bytes, and close it.

    Raises:
        DriverFilesError: it has more or less.
    """
    with os.fdopen(file, "rb") as source:
        out = os.open(name, _NEW, 0o755, dir_fd=folder)
        with os.fdopen(out, "wb") as copy:
            os.fchmod(out, 0o755)
            shutil.copyfileobj(source, copy, _CHUNK)
            copy.flush()
            if os.fstat(out).st_size != size:
                raise DriverFilesError(f"driver-dir: {name} is being changed on the host")
            os.fsync(out)


def _is_folder(base: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=base, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _content(folder: int) -> dict[str, int | str]:
    """Return what is in a generation: sizes of files and targets of links, by path."""
    found: dict[str, int | str] = {}
    for name in FOLDERS:
        with opened(name, folder) as below:
            for each in names(below):
                status = os.stat(each, dir_fd=below, follow_symlinks=False)
                is_link = stat.S_ISLNK(status.st_mode)
                found[f"{name}/{each}"] = (
                    os.readlink(each, dir_fd=below) if is_link else status.st_size
                )
    return found


def _boot_id() -> bytes:
    return _BOOT_ID.read_bytes().strip()[:_LONGEST_BOOT_ID]
