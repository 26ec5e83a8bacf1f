"""Certificates kept in a directory, under the names of a Kubernetes TLS Secret."""

import base64
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from certs.errors import InvalidCertificate, StoreError
from certs.issue import Issued
from certs.reading import check_authorities

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVING_CERTIFICATE, SERVING_KEY = "tls.crt", "tls.key"

_SECRET = frozenset({CA_KEY, SERVING_KEY})
_SECRET_MODE, _PUBLIC_MODE = 0o600, 0o644


def write(
    directory: Path,
    issued: Issued,
    *,
    force: bool = False,
    entropy: Callable[[], str] = lambda: secrets.token_hex(8),
) -> None:
    """Keep *issued* in *directory*, made if it is missing.

    Every file appears whole or not at all, and keys are never readable by others.
    All contents are on disk before the first name changes. Writers to the same
    directory take turns.

    Args:
        directory: where.
        issued: what.
        force: replace what is there.
        entropy: gives what keeps names of temporary files apart.

    Raises:
        StoreError: a file is there already (and *force* is not set), or the
            directory cannot be written; what was there is unchanged.
    """
    contents = {
        CA_CERTIFICATE: issued.authority.certificate,
        CA_KEY: issued.authority.key,
        SERVING_CERTIFICATE: issued.serving.certificate,
        SERVING_KEY: issued.serving.key,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _turn(directory) as descriptor:
            _refuse_what_is_there(directory, contents, force=force)
            _sweep(directory)
            _replace_all(directory, contents, entropy)
            os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error


def read_ca_bundle(directory: Path) -> str:
    """Read the authority's certificate as a webhook configuration's ``caBundle``: base64.

    Raises:
        StoreError: the file cannot be read.
        InvalidCertificate: it holds something else.
    """
    path = directory / CA_CERTIFICATE
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        check_authorities(pem)
    except InvalidCertificate as error:
        raise InvalidCertificate(f"{path}: {error}") from error
    return base64.b64encode(pem).decode("ascii")


@contextmanager
def _turn(directory: Path) -> Iterator[int]:
    """Hold the directory's lock, so that two writers cannot mix their certificates and keys."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_what_is_there(directory: Path, names: Mapping[str, bytes], *, force: bool) -> None:
    there = [name for name in names if os.path.lexists(directory / name)]
    if there and not force:
        raise StoreError(f"{directory} already has {', '.join(there)}: give --force to replace")
    for name in there:
        if (directory / name).is_dir():
            raise StoreError(f"{directory / name}: is a directory")


def _sweep(directory: Path) -> None:
    """Remove what a writer killed in the middle left; the turn is ours, so no one needs it."""
    for leftover in directory.glob(".*.certs-tmp"):
        leftover.unlink()


def _replace_all(
    directory: Path, contents: Mapping[str, bytes], entropy: Callable[[], str]
) -> None:
    written: dict[Path, Path] = {}
    try:
        for name, content in contents.items():
            temporary = directory / f".{name}.{entropy()}.certs-tmp"
            written[temporary] = directory / name
            _write_new(temporary, content, _SECRET_MODE if name in _SECRET else _PUBLIC_MODE)
        for temporary, target in written.items():
            temporary.replace(target)
    finally:
        for temporary in written:
            temporary.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a new file that has its mode from the moment it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - wraps a descriptor, there is no path
        file.write(content)
        file.flush()
        os.fsync(descriptor)
