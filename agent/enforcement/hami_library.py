"""HAMi-core's library on the host: checks whether it exists, can be loaded, and is new enough."""

import logging
import mmap
import stat
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

LIBRARY = "libvgpu.so"

# Part of a message that was added together with the lock in the shared file, on 2026-02-03. The
# library has no version, and its symbols are hidden; its messages are in every build.
_LOCK_MESSAGE = b"postinit lock"

_READS = (b"CUDA_DEVICE_MEMORY_LIMIT", b"CUDA_DEVICE_SM_LIMIT")
"""Variables that every build reads, and that the agent sets."""

_SHARED_OBJECT = 3  # ET_DYN
_INSTALL = "the node's admin must install HAMi-core"


class HamiLibrary:
    """The library in the host's folder. Safe to share between threads."""

    def __init__(
        self,
        folder: Path,
        *,
        on_outdated: Callable[[bool], None],
        on_problem: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        """Read nothing yet.

        *on_outdated* is called for each new file: whether it is too old; *on_problem* at each check
        with why the file cannot be used, and its path; empty if it can.
        """
        self.path = folder / LIBRARY
        self._on_outdated = on_outdated
        self._on_problem = on_problem
        self._checked: tuple[int, ...] = ()
        self._wrong = ""  # what is wrong with the file checked last
        self._logged = ""

    def find_problem(self) -> str:
        """Return why the library cannot be used, without its path; empty if it can.

        The loader ignores a file that it cannot load, and programs would run without limits. A new
        problem is logged.
        """
        problem = self._find_problem()
        if problem and problem != self._logged:
            log.error("HAMi-core cannot be used", extra={"path": str(self.path), "reason": problem})
        self._logged = problem
        self._on_problem(f"{problem} ({self.path})" if problem else "")
        return problem

    def _find_problem(self) -> str:
        missing = (
            f"hami-library-dir: the node has no {LIBRARY}, which enforces the limits of "
            f"containers: {_INSTALL}"
        )
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                return missing
            identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
            if identity != self._checked:
                self._wrong = _find_fault(self.path)
                if not self._wrong:
                    self._check_age()
                self._checked = identity
        except OSError:
            return missing  # or being replaced
        if not self._wrong:
            return ""
        return (
            f"hami-library-dir: the node's {LIBRARY} is no HAMi-core, which enforces the limits of "
            f"containers: {self._wrong}: {_INSTALL}"
        )

    def _check_age(self) -> None:
        outdated = not _contains(self.path, _LOCK_MESSAGE)
        if outdated:
            log.warning("HAMi-core is outdated", extra={"path": str(self.path)})
        self._on_outdated(outdated)


def _find_fault(path: Path) -> str:
    """Return why a file is no HAMi-core for this machine; empty if it is."""
    header, own = _read_header(path), _read_header(Path("/proc/self/exe"))
    if not header:
        return "the file is empty"
    if header[:4] != b"\x7fELF" or len(header) < len(own):
        return "the file is not in the format of a library (ELF)"
    if (header[4:6], header[18:20]) != (own[4:6], own[18:20]):
        kinds = (int.from_bytes(each[18:20], "little") for each in (header, own))
        return "the library is for another architecture: ELF machine {}, must be {}".format(*kinds)
    if int.from_bytes(header[16:18], "little") != _SHARED_OBJECT:
        return "the file is not a shared library"
    unread = [each.decode() for each in _READS if not _contains(path, each)]
    return f"the library does not read {' and '.join(unread)}" if unread else ""


def _read_header(path: Path) -> bytes:
    """Return the part of an ELF header up to the machine (``elf.h``)."""
    with path.open("rb") as file:
        return file.read(20)


def _contains(path: Path, text: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0
