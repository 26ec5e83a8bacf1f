"""Reads the host's driver files through the folder in which its root is mounted.

Symbolic links are followed as the host would: an absolute one begins at the host's root, and
none leads out of it.
"""

import os
import platform
import stat
from pathlib import Path, PurePosixPath

from agent.driver.layout import (
    BINARIES,
    CLIENT,
    CONTROL,
    Found,
    Layout,
    Source,
    choose,
    is_of_interest,
)
from agent.driver.ldcache import ARCHITECTURES, LARGEST, Library, parse_ldcache
from agent.errors import DriverFilesError

_CACHE = "/etc/ld.so.cache"
_MODULE_VERSION = Path("/sys/module/nvidia/version")
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_GPU_MANAGER = "/etc/gpu-manager/vdriver/nvidia"
"""Where gpu-manager has left vcuda-controller's files."""

_MOST_LINKS = 40  # of one path, as Linux itself
_SHORT = 64
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe holds nobody up
_ELF = b"\x7fELF"


class Host:
    """The driver files of a host whose root is mounted at *root*, with vcuda-controller's or not.

    *machine* is its architecture as ``uname -m`` names it.
    """

    def __init__(
        self,
        root: Path,
        *,
        vcuda: bool = False,
        machine: str = "",
        module_version: Path = _MODULE_VERSION,
    ) -> None:
        self._root = root
        self._vcuda = vcuda
        self._machine = machine or platform.machine()
        self._module_version = module_version

    def look(self) -> Layout:
        """Return the folder that containers need now.

        Raises:
            DriverFilesError: there is no driver, or what is there cannot be used.
        """
        try:
            found = [*self._libraries(), *self._binaries()]
        except OSError as error:
            raise DriverFilesError(f"driver-dir: cannot read the host's files: {error}") from error
        return choose(found, module=self._module(), vcuda=self._vcuda)

    def open(self, source: Source) -> int:
        """Open a file, which must be as it was seen, and ELF; the descriptor is the caller's.

        Raises:
            DriverFilesError: it is not, or cannot be read.
        """
        try:
            file = os.open(self._below(source.path), _READ)
        except OSError as error:
            raise DriverFilesError(f"driver-dir: {source.path}: {error.strerror}") from error
        try:
            if _source(source.path, os.fstat(file)) != source:
                raise DriverFilesError(f"driver-dir: {source.path} is being changed on the host")
            if os.pread(file, len(_ELF), 0) != _ELF:
                raise DriverFilesError(
                    f"driver-dir: {source.path} is no ELF file: install the driver anew"
                )
        except BaseException:
            os.close(file)
            raise
        return file

    def resolve(self, path: str) -> str | None:
        """Return the host's path without symbolic links; ``None`` where nothing is there."""
        left = list(PurePosixPath(path).parts[1:])[::-1]
        done: list[str] = []
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                done = done[:-1]
                continue
            here = self._below("/".join(("", *done, part)))
            try:
                status = here.lstat()
                target = str(here.readlink()) if stat.S_ISLNK(status.st_mode) else None
            except (FileNotFoundError, NotADirectoryError):
                return None
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            steps = PurePosixPath(target).parts
            if target.startswith("/"):
                done, steps = [], steps[1:]
            left += steps[::-1]
        return "/" + "/".join(done)

    def _libraries(self) -> list[Found]:
        folders = ARCHITECTURES.get(self._machine)
        if folders is None:
            raise DriverFilesError(f"driver-dir: {self._machine} is no architecture of a driver")
        listed = [
            each
            for each in parse_ldcache(self._read_cache())
            if each.architecture in folders and is_of_interest(each.name)
        ]
        if self._vcuda:
            own = next(iter(folders))
            listed.append(Library(CONTROL, f"{_GPU_MANAGER}/lib64/{CONTROL}", own))
        found = (
            self._find(folders[each.architecture], each.name, each.path)
            for each in dict.fromkeys(listed)
        )
        return [each for each in found if each is not None]

    def _binaries(self) -> list[Found]:
        wanted = [(folder, name) for folder in _PATH for name in BINARIES]
        if self._vcuda:
            wanted += [(folder, CLIENT) for folder in (*_PATH, f"{_GPU_MANAGER}/bin")]
        found = (self._find("bin", name, f"{folder}/{name}") for folder, name in wanted)
        return [each for each in found if each is not None]

    def _find(self, folder: str, name: str, path: str) -> Found | None:
        real = self.resolve(path)
        if real is None:
            return None
        status = self._below(real).lstat()
        return Found(folder, name, _source(real, status)) if stat.S_ISREG(status.st_mode) else None

    def _read_cache(self) -> bytes:
        real = self.resolve(_CACHE)
        if real is None:
            raise DriverFilesError(
                f"driver-dir: there is no {_CACHE} below {self._root}: mount the host's root "
                "there (--host-root), or run ldconfig on the host"
            )
        file = os.open(self._below(real), _READ)
        with os.fdopen(file, "rb") as cache:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise DriverFilesError(f"driver-dir: {_CACHE} is no file")
            return cache.read(LARGEST + 1)

    def _module(self) -> str:
        try:
            with self._module_version.open("rb") as file:
                return file.read(_SHORT).decode("ascii", "replace").strip()
        except OSError:
            return ""

    def _below(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _source(path: str, status: os.stat_result) -> Source:
    return Source(path, status.st_size, status.st_mtime_ns, status.st_ino)
