"""The server's side of TLS: its certificate, read and judged before anybody connects."""

import ssl
from pathlib import Path

from webhook.errors import SettingsError

# TLS 1.2 only with forward secrecy and authenticated encryption; 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Make a server's context, TLS 1.2 and newer.

    Args:
        cert: PEM certificate, with its chain below it.
        key: PEM private key of the first certificate, not encrypted.

    Raises:
        SettingsError: a file cannot be read or used, or the two do not belong together.
    """
    _look_for(b"-----BEGIN CERTIFICATE-----", cert, "--cert", "a PEM certificate")
    _look_for(b"PRIVATE KEY-----", key, "--key", "a PEM private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    try:
        # Without a password OpenSSL would stop and ask the terminal for one.
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = "certificate and key do not belong together"
        else:
            problem = f"cannot be used: {error.reason or error}"
        raise SettingsError(f"--cert {cert} --key {key}: {problem}") from error
    except OSError as error:  # taken away since it was read above
        raise SettingsError(f"--cert {cert} --key {key}: {error.strerror}") from error
    return context


def _look_for(mark: bytes, path: Path, flag: str, kind: str) -> None:
    """Find the mistakes OpenSSL does not tell apart."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{flag} {path}: cannot be read: {error.strerror}") from error
    if mark not in content:
        raise SettingsError(f"{flag} {path}: is not {kind}")
