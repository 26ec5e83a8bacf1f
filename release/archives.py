"""Writes archives with bytes that depend only on their content."""

import gzip
import hashlib
import io
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

_FIRST_ZIP_YEAR = 315_532_800  # 1980, the earliest time in a ZIP archive
_FILE, _PROGRAM = 0o644, 0o755


def write_zip(path: Path, files: Mapping[str, bytes], *, epoch: int, before: bytes = b"") -> None:
    """Write a ZIP archive.

    Args:
        path: path of the archive.
        files: content by name.
        epoch: seconds since 1970, the time of every file.
        before: bytes before the archive, which readers of ZIP ignore; makes it a program.
    """
    written = io.BytesIO()
    written.write(before)
    moment = time.gmtime(max(epoch, _FIRST_ZIP_YEAR))[:6]
    with zipfile.ZipFile(written, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | _FILE) << 16
            archive.writestr(entry, content)
    path.write_bytes(written.getvalue())
    path.chmod(_PROGRAM if before else _FILE)


def write_tar(path: Path, files: Mapping[str, tuple[bytes, bool]], *, epoch: int) -> None:
    """Write a ``.tar.gz`` of files by name: content, and whether it is a program."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, is_program) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), epoch
            entry.mode = _PROGRAM if is_program else _FILE
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
