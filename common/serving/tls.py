"""The server's side of TLS: the certificate, checked before it is served, and reloaded."""

import logging
import math
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from common.errors import SettingsError

_log = logging.getLogger(__name__)

# TLS 1.2 only with forward secrecy and authenticated encryption; 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class ReloadResult(Enum):
    """The result of reading the files again."""

    NONE = "none"
    LOADED = "loaded"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Files:
    """The files for TLS.

    Attributes:
        cert: PEM certificate, with its chain below it.
        key: PEM private key of the first certificate, not encrypted.
        client_ca: PEM certificates that may sign those of clients; ``None`` when clients are
            not asked for a certificate.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServedCertificate:
    """The served certificate: the newest usable one.

    Kubernetes changes a mounted Secret by replacing a symbolic link, so only the content of the
    files shows a change. New connections get a new context; existing ones keep theirs.

    Attributes:
        files: the files.
        context: the context for the next connection.
        expires: expiry of the certificate, as unix time in seconds.

    Raises:
        SettingsError: the first pair cannot be used.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self._refused = ""
        # In this order: if files change between the two reads, the next refresh detects it.
        self._content = _read(files)
        self.context = server_context(files)
        self.expires = not_after(self._content[0])

    def refresh(self) -> ReloadResult:
        """Serve the pair in the files, or keep the previous one if it cannot be used.

        Returns:
            ``REFUSED`` once for each reason, however often the files are read.
        """
        try:
            content = _read(self.files)
            if content == self._content:
                return ReloadResult.NONE
            context = server_context(self.files)
        except SettingsError as error:
            if str(error) == self._refused:
                return ReloadResult.NONE
            self._refused = str(error)
            message = "certificate refused, the previous one is still served"
            _log.error(message, extra={"reason": self._refused})
            return ReloadResult.REFUSED
        self._content, self.context, self._refused = content, context, ""
        self.expires = not_after(content[0])
        _log.info("certificate loaded", extra={"cert": str(self.files.cert)})
        return ReloadResult.LOADED


def server_context(files: Files) -> ssl.SSLContext:
    """Make a server's context, for TLS 1.2 and newer.

    Raises:
        SettingsError: a file cannot be read or used, or the two do not belong together.
    """
    _read(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # A resumed session would keep the trust in an earlier --client-ca.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    with _translated(f"--cert {files.cert} --key {files.key}"):
        # Without a password OpenSSL would stop and ask the terminal for one.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
    if files.client_ca is not None:
        # Optional: the kubelet has none, and its probes must pass.
        context.verify_mode = ssl.CERT_OPTIONAL
        with _translated(f"--client-ca {files.client_ca}"):
            context.load_verify_locations(files.client_ca)
    return context


@contextmanager
def _translated(files: str) -> Iterator[None]:
    """Translate errors of OpenSSL and the file system to one about *files*."""
    try:
        yield
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(f"{files}: certificate and key do not belong together") from error
        raise SettingsError(f"{files}: cannot be used: {error.reason or error}") from error
    except OSError as error:  # deleted since it was read
        raise SettingsError(f"{files}: {error.strerror}") from error


def _read(files: Files) -> tuple[bytes, ...]:
    """Return the content of all files; the certificate is the first.

    Raises:
        SettingsError: a file cannot be read, or is of another kind (OpenSSL does not say which).
    """
    certificate, key = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"
    found = []
    for flag, path, mark, kind in (
        ("--cert", files.cert, certificate, "a PEM certificate"),
        ("--key", files.key, key, "a PEM private key"),
        ("--client-ca", files.client_ca, certificate, "a PEM certificate"),
    ):
        if path is None:
            continue
        try:
            found.append(path.read_bytes())
        except OSError as error:
            raise SettingsError(f"{flag} {path}: cannot be read: {error.strerror}") from error
        if mark not in found[-1]:
            raise SettingsError(f"{flag} {path}: is not {kind}")
    return tuple(found)


def not_after(pem: bytes) -> float:
    """Return the expiry of the first certificate in *pem*, as unix time in seconds.

    Not a number if OpenSSL can serve the certificate but ``cryptography`` cannot read it: it is not
    refused only because its expiry cannot be shown.
    """
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        return math.nan
