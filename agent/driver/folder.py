"""The folder of driver files: a generation for each driver, and a link to the current one.

::

    <base>/current -> 550.54.15-1f2e3d4c5b6a      mounted into containers
    <base>/550.54.15-1f2e3d4c5b6a/{bin,lib,lib64}
    <base>/535.129.03-a1b2c3d4e5f6/...            still mounted in containers that started with it
    <base>/.535.129.03-a1b2c3d4e5f6.retired       the ID of the boot in which it was replaced

A generation is made under a temporary name and renamed once it is complete and on disk, and a
rename replaces the link. So a reader finds the old driver complete or the new one complete, even if
the agent was killed at any step. A running container keeps the folder that it was started with; a
restarted one gets the current folder.
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
_TEMPORARY = (".new", ".gone")  # a killed agent may leave folders with these suffixes
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
        """Whether containers find a driver: the host's current one or an older one."""
        return all((self._base / self._name / each).is_dir() for each in FOLDERS)

    def lay_out(self, layout: Layout, open_source: Callable[[HostFile], int]) -> bool:
        """Make the link point to a generation with *layout*; return whether it was changed.

        Does nothing while another agent of the node changes the folder. *open_source* opens a
        file of the host.

        Raises:
            DriverFilesError: a file has changed meanwhile, or the disk returns an error.
        """
        with self._changing() as base:
            if base is None:
                return False
            for each in names(base):
                if each.startswith(".") and each.endswith(_TEMPORARY):
                    remove(base, each)
            name = self._find_complete(base, layout) or self._make(base, layout, open_source)
            if self._link(base) == name:
                return False
            self._switch(base, name)
            return True

    def prune(self, *, idle: bool) -> list[str]:
        """Remove generations that no container uses any more; return their names.

        No container uses a generation that was replaced before the last boot: containers that were
        started since then have the current one. Other generations are removed if *idle*, that is if
        no container of the node has a GPU.

        Raises:
            DriverFilesError: the disk returns an error.
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
                if retired is None:  # the file with the boot ID was lost
                    replace(base, {f".{name}{_RETIRED}": boot})
                if idle or (retired is not None and retired != boot):
                    # Rename it first: a half-removed one must not be taken for a complete one.
                    os.rename(name, f".{name}.gone", src_dir_fd=base, dst_dir_fd=base)
                    remove(base, f".{name}.gone")
                    remove(base, f".{name}{_RETIRED}")
                    removed.append(name)
        return removed

    @contextlib.contextmanager
    def _changing(self) -> Iterator[int | None]:
        """Lock the folder for this process; yield ``None`` if another process has locked it."""
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
            advice = _ADVICE.get(error.errno or 0, "the node's admin must fix this")
            raise DriverFilesError(
                f"driver-dir: cannot lay out {self._base}: {error.strerror}: {advice}"
            ) from error

    def _find_complete(self, base: int, layout: Layout) -> str | None:
        """Return the generation that has exactly this content, if there is one."""
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
        # A damaged generation may still be mounted: its name is not used again.
        name = next(
            each
            for each in (layout.name, *(f"{layout.name}~{n}" for n in range(2, _MOST_REPAIRS)))
            if each not in there
        )
        temporary = f".{name}.new"
        try:
            os.mkdir(temporary, 0o755, dir_fd=base)
            with opened(temporary, base) as made:
                os.fchmod(made, 0o755)
                self._fill(made, layout, open_source)
            os.rename(temporary, name, src_dir_fd=base, dst_dir_fd=base)
            os.fsync(base)
        except BaseException:
            remove(base, temporary)
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
        """Make the link point to another generation."""
        before = self._link(base)
        if before is not None:
            replace(base, {f".{before}{_RETIRED}": _boot_id()})
        if _is_folder(base, self._name):  # a container runtime makes it if there is no link
            os.rmdir(self._name, dir_fd=base)
        temporary = f".{self._name}.new"
        remove(base, temporary)
        os.symlink(name, temporary, dir_fd=base)
        os.rename(temporary, self._name, src_dir_fd=base, dst_dir_fd=base)
        os.fsync(base)

    def _link(self, base: int) -> str | None:
        try:
            return os.readlink(self._name, dir_fd=base)
        except OSError:  # it does not exist, or is not a link
            return None


def _copy(file: int, folder: int, name: str, size: int) -> None:
    """Copy a file that has *size* bytes, and close it.

    Raises:
        DriverFilesError: it has another size.
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
    """Return the content of a generation: sizes of files and targets of links, by path."""
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
