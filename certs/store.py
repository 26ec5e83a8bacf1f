"""Stores certificates in a directory, with the file names of a Kubernetes TLS Secret."""

import os
from pathlib import Path

from certs.errors import StoreError
from certs.issue import Issued

_SECRET_MODE, _PUBLIC_MODE = 0o600, 0o644


def write(directory: Path, issued: Issued, *, force: bool = False) -> None:
    """Write *issued* to *directory*, which is created if it is missing.

    Every file appears completely or not at all, and keys are never readable by others.

    Args:
        directory: the directory.
        issued: certificates and keys.
        force: replace existing files.

    Raises:
        StoreError: a file exists (and *force* is not set), or the directory is not writable.
    """
    contents = {
        "ca.crt": (issued.authority.certificate, _PUBLIC_MODE),
        "ca.key": (issued.authority.key, _SECRET_MODE),
        "tls.crt": (issued.serving.certificate, _PUBLIC_MODE),
        "tls.key": (issued.serving.key, _SECRET_MODE),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        there = [name for name in contents if os.path.lexists(directory / name)]
        if there and not force:
            raise StoreError(f"{directory} already has {', '.join(there)}: give --force to replace")
        for name, (content, mode) in contents.items():
            _replace(directory / name, content, mode)
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error


def read(path: Path) -> bytes:
    """Read a file.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Replace *path* by a new file, which is created with its mode."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # left by a process that was killed
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - wraps a descriptor, there is no path
        file.write(content)
    new.replace(path)
