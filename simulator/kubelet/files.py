"""Atomic file writes: a reader or the next process sees the complete old or new file."""

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write *text* to a temporary file next to *path*, mode 0600, and rename it to *path*.

    If the process is killed, the old file stays. No fsync: loss of power is not simulated.
    """
    # With the thread's ID, two writers of one file never share a temporary file.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with open(beside, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
    beside.replace(path)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
