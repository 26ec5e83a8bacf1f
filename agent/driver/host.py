"""Reads the host's driver files through the folder in which its root is mounted.

The driver is installed on the host itself, or in a container whose root NVIDIA's GPU Operator
mounts at ``/run/nvidia/driver``. In the second case its libraries, the loader's list of them and
its device nodes exist only there. Symbolic links are followed as in the driver's own system: an
absolute link starts at that system's root, and no link leads out of it.
"""

import os
import platform
import stat
from pathlib import Path, PurePosixPath

from agent.driver.layout import (
    BINARIES,
    CLIENT,
    CONTROL,
    DriverFile,
    HostFile,
    Layout,
    choose,
    is_of_interest,
)
from agent.driver.ldcache import ARCHITECTURES, LARGEST, parse_ldcache
from agent.errors import DriverFilesError

_CACHE = "/etc/ld.so.cache"
_MODULE_VERSION = Path("/sys/module/nvidia/version")
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_GPU_MANAGER = "/etc/gpu-manager/vdriver/nvidia"
"""The folder in which gpu-manager installed vcuda-controller's files."""

DRIVER_IN_ITS_CONTAINER = "/run/nvidia/driver"
"""The root of a driver container on the host: the GPU Operator's default."""

_MOST_LINKS = 40  # in one path, the limit of Linux
_SHORT = 64
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe must not block
_ELF = b"\x7fELF"


class Host:
    """The driver files of a host whose root is mounted at *root*.

    With *vcuda* they include those of vcuda-controller. *machine* is the host's architecture as
    ``uname -m`` names it.
    """

    def __init__(
        self,
        root: Path,
        *,
        vcuda: bool = False,
        machine: str = "",
        module_version: Path = _MODULE_VERSION,
    ) -> None:
        self._host = _Root(root)
        self._vcuda = vcuda
        self._machine = machine or platform.machine()
        self._module_version = module_version

    def find_files(self) -> Layout:
        """Return the layout of the folder that containers need now.

        A driver on the host itself comes first, as in NVIDIA's validator. A driver whose version
        differs from the kernel module's is ignored.

        Raises:
            DriverFilesError: there is no driver, or its files cannot be used.
        """
        try:
            return self._find_in(self._host)
        except DriverFilesError:
            contained = _Root(self._host.below(DRIVER_IN_ITS_CONTAINER), DRIVER_IN_ITS_CONTAINER)
            if not contained.exists(_CACHE):
                raise
        return self._find_in(contained)

    def _find_in(self, root: "_Root") -> Layout:
        try:
            found = [*self._libraries(root), *self._binaries(root)]
        except OSError as error:
            raise DriverFilesError(f"driver-dir: cannot read the host's files: {error}") from error
        return choose(found, module=self._module(), vcuda=self._vcuda)

    def open(self, source: HostFile) -> int:
        """Open a file; the caller closes the descriptor.

        Raises:
            DriverFilesError: it has changed since it was found, is no ELF file, or cannot be read.
        """
        try:
            file = os.open(self._host.below(source.path), _READ)
        except OSError as error:
            raise DriverFilesError(f"driver-dir: {source.path}: {error.strerror}") from error
        try:
            if _describe(source.path, os.fstat(file)) != source:
                raise DriverFilesError(f"driver-dir: {source.path} is being changed on the host")
            if os.pread(file, len(_ELF), 0) != _ELF:
                raise DriverFilesError(
                    f"driver-dir: {source.path} is no ELF file: reinstall the driver"
                )
        except BaseException:
            os.close(file)
            raise
        return file

    def _libraries(self, root: "_Root") -> list[DriverFile]:
        folders = ARCHITECTURES.get(self._machine)
        if folders is None:
            raise DriverFilesError(f"driver-dir: architecture {self._machine} is not supported")
        listed = dict.fromkeys(
            each
            for each in parse_ldcache(root.read_cache())
            if each.architecture in folders and is_of_interest(each.name)
        )
        found = [root.find(folders[each.architecture], each.name, each.path) for each in listed]
        if self._vcuda:
            own = folders[next(iter(folders))]
            found.append(self._host.find(own, CONTROL, f"{_GPU_MANAGER}/lib64/{CONTROL}"))
        return [each for each in found if each is not None]

    def _binaries(self, root: "_Root") -> list[DriverFile]:
        found = [root.find("bin", name, f"{at}/{name}") for at in _PATH for name in BINARIES]
        if self._vcuda:
            folders = (*_PATH, f"{_GPU_MANAGER}/bin")
            found += [self._host.find("bin", CLIENT, f"{at}/{CLIENT}") for at in folders]
        return [each for each in found if each is not None]

    def _module(self) -> str:
        try:
            with self._module_version.open("rb") as file:
                return file.read(_SHORT).decode("ascii", "replace").strip()
        except OSError:
            return ""


class _Root:
    """The root of a system, mounted at *folder*; the host has it at *path*."""

    def __init__(self, folder: Path, path: str = "") -> None:
        self._folder = folder
        self._path = path

    def resolve(self, path: str) -> str | None:
        """Resolve the symbolic links in a path of the system; ``None`` if it does not exist."""
        left = list(PurePosixPath(path).parts[1:])[::-1]
        done: list[str] = []
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                done = done[:-1]
                continue
            current = self.below("/".join(("", *done, part)))
            try:
                status = current.lstat()
                target = str(current.readlink()) if stat.S_ISLNK(status.st_mode) else None
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

    def find(self, folder: str, name: str, path: str) -> DriverFile | None:
        """Return the regular file at *path*; ``None`` if there is none."""
        real = self.resolve(path)
        if real is None:
            return None
        status = self.below(real).lstat()
        if not stat.S_ISREG(status.st_mode):
            return None
        return DriverFile(folder, name, _describe(f"{self._path}{real}", status))

    def exists(self, path: str) -> bool:
        """Return whether *path* exists."""
        try:
            return self.resolve(path) is not None
        except OSError:
            return False

    def read_cache(self) -> bytes:
        """Return the loader's list of libraries.

        Raises:
            DriverFilesError: there is none.
        """
        real = self.resolve(_CACHE)
        if real is None:
            raise DriverFilesError(
                f"driver-dir: there is no {_CACHE} below {self._folder}: mount the host's root "
                "there (--host-root), or run ldconfig on the host"
            )
        file = os.open(self.below(real), _READ)
        with os.fdopen(file, "rb") as cache:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise DriverFilesError(f"driver-dir: {_CACHE} is no file")
            return cache.read(LARGEST + 1)

    def below(self, path: str) -> Path:
        """Return the path by which this process reaches a path of the system."""
        return self._folder / path.lstrip("/")


def device_on_host(root: Path, path: str) -> str:
    """Return the path on the host, mounted at *root*, of the device node *path* of the driver."""
    contained = f"{DRIVER_IN_ITS_CONTAINER}{path}"
    return contained if (root / contained.lstrip("/")).exists() else path


def _describe(path: str, status: os.stat_result) -> HostFile:
    return HostFile(path, status.st_size, status.st_mtime_ns, status.st_ino)
