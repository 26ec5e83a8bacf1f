"""Writing a file so that a reader, or the next process, sees the old or the new one whole."""

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write *text* beside *path*, for the owner's eyes only, and rename it into place.

    A killed process leaves the old file; no fsync, a node that loses power is not simulated.
    """
    # The thread's id keeps two writers of one file from sharing a half-written one.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with open(beside, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
    beside.replace(path)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
