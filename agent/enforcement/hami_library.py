"""HAMi-core's library on the host: checks whether it exists and is new enough."""

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


class HamiLibrary:
    """The library in the host's folder. Safe to share between threads."""

    def __init__(self, folder: Path, *, on_outdated: Callable[[bool], None]) -> None:
        """Read nothing yet; *on_outdated* is called for each new file: whether it is too old."""
        self.path = folder / LIBRARY
        self._on_outdated = on_outdated
        self._checked: tuple[int, ...] = ()

    def present(self) -> bool:
        """Return whether the library exists; check the version of a new file."""
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                return False
            identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
            if identity != self._checked:
                outdated = not _contains(self.path, _LOCK_MESSAGE)
                if outdated:
                    log.warning("HAMi-core is outdated", extra={"path": str(self.path)})
                self._on_outdated(outdated)
                self._checked = identity
        except OSError:
            return False  # missing, or being replaced
        return True


def _contains(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(text) >= 0
        except ValueError:  # an empty file
            return False
