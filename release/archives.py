"""Writes archives with bytes that depend only on their content."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def write_tar(path: Path, files: Mapping[str, tuple[bytes, bool]], *, epoch: int) -> None:
    """Write a ``.tar.gz`` of files by name: content, and whether it is a program."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, is_program) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), epoch
            entry.mode = 0o755 if is_program else 0o644
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
