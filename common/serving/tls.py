"""The server's side of TLS: the certificate, checked before it is served, and reloaded."""

import logging
import math
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from common.serving.errors import SettingsError

_log = logging.getLogger(__name__)

# TLS 1.2 only with forward secrecy and authenticated encryption; 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_CERTIFICATE, _KEY = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"


class Change(Enum):
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


class Certificate:
    """The certificate that is served: the newest usable one.

    Kubernetes changes a mounted Secret by replacing a symbolic link, so only the content
    of the files tells whether they have changed. New connections get a new context;
    existing ones keep theirs.

    Args:
        files: to read.

    Attributes:
        files: as given.
        context: for the next connection.
        expires: end of the certificate, as unix time in seconds.

    Raises:
        SettingsError: the first pair cannot be used.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self._refused = ""
        # In this order: what is replaced between the two is found by the next refresh.
        self._content = _read(files)
        self.context = server_context(files)
        self.expires = not_after(self._content[0])

    def refresh(self) -> Change:
        """Serve the pair in the files, or keep the one before when it cannot be used.

        Returns:
            ``REFUSED`` once for each reason, however often the files are read.
        """
        try:
            content = _read(self.files)
            if content == self._content:
                return Change.NONE
            context = server_context(self.files)
        except SettingsError as error:
            return self._refuse(str(error))
        self._content, self.context, self._refused = content, context, ""
        self.expires = not_after(content[0])
        _log.info("certificate loaded", extra={"cert": str(self.files.cert)})
        return Change.LOADED

    def _refuse(self, reason: str) -> Change:
        if reason == self._refused:
            return Change.NONE
        self._refused = reason
        _log.error("certificate refused, the one before serves on", extra={"reason": reason})
        return Change.REFUSED


def server_context(files: Files) -> ssl.SSLContext:
    """Make a server's context, for TLS 1.2 and newer.

    Raises:
        SettingsError: a file cannot be read or used, or the two do not belong together.
    """
    _look_for(_CERTIFICATE, files.cert, "--cert", "a PEM certificate")
    _look_for(_KEY, files.key, "--key", "a PEM private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # A resumed session would bring the trust of an earlier --client-ca with it.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    pair = f"--cert {files.cert} --key {files.key}"
    try:
        # Without a password OpenSSL would stop and ask the terminal for one.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = "certificate and key do not belong together"
        else:
            problem = f"cannot be used: {error.reason or error}"
        raise SettingsError(f"{pair}: {problem}") from error
    except OSError as error:  # taken away since it was read above
        raise SettingsError(f"{pair}: {error.strerror}") from error
    if files.client_ca is not None:
        _ask_for_client(context, files.client_ca)
    return context


def _ask_for_client(context: ssl.SSLContext, authority: Path) -> None:
    """Ask clients for a certificate; the kubelet has none, and its probes must pass."""
    _look_for(_CERTIFICATE, authority, "--client-ca", "a PEM certificate")
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise SettingsError(
            f"--client-ca {authority}: cannot be used: {error.reason or error}"
        ) from error
    except OSError as error:  # taken away since it was read above
        raise SettingsError(f"--client-ca {authority}: {error.strerror}") from error


def _read(files: Files) -> tuple[bytes, ...]:
    """Read all files, to find out whether any has changed.

    Raises:
        SettingsError: a file cannot be read.
    """
    named = (("--cert", files.cert), ("--key", files.key), ("--client-ca", files.client_ca))
    return tuple(_content(path, flag) for flag, path in named if path is not None)


def _look_for(mark: bytes, path: Path, flag: str, kind: str) -> None:
    """Refuse the mistakes that OpenSSL reports with one text."""
    if mark not in _content(path, flag):
        raise SettingsError(f"{flag} {path}: is not {kind}")


def _content(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{flag} {path}: cannot be read: {error.strerror}") from error


def not_after(pem: bytes) -> float:
    """Return the end of the first certificate in *pem*, as unix time in seconds.

    Not a number where ``cryptography`` cannot read what OpenSSL serves: a certificate is not
    refused because its end cannot be shown.
    """
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        return math.nan
