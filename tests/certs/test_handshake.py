"""The files as written, in a real TLS handshake with Python's own verification."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from certs import store
from certs.issue import Issued


def _handshake(directory: Path, hostname: str) -> str | None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    theirs.settimeout(30)

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                connection.recv(1)
        except OSError:  # the client refused us, which is what it was asked about
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=hostname) as connection:
            connection.sendall(b".")
            return connection.version()
    finally:
        ours.close()
        thread.join(30)


@pytest.mark.parametrize("hostname", ["localhost", "turnstile.example.svc", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_connects(
    issued: Issued, tmp_path: Path, hostname: str
) -> None:
    store.write(tmp_path, issued)
    assert _handshake(tmp_path, hostname) == "TLSv1.3"


@pytest.mark.parametrize("hostname", ["example.svc", "127.0.0.2"])
def test_a_client_that_wants_another_host_refuses(
    issued: Issued, tmp_path: Path, hostname: str
) -> None:
    store.write(tmp_path, issued)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        _handshake(tmp_path, hostname)
