"""The files as written, in real TLS handshakes with clients that verify, and with `Replicas`."""

import socket
import ssl
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from certs.errors import InvalidField
from certs.issue import Issued
from certs.reading import read_certificate
from certs.replicas import Replicas, parse_replicas
from tests.scripted import answering


def serving(directory: Path) -> AbstractContextManager[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return answering(lambda _path, _body: (200, b""), context)


def _handshake(directory: Path, hostname: str) -> str | None:
    """Connect as a client that is strict; return the version of TLS."""
    client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    with (
        serving(directory) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        client.wrap_socket(plain, server_hostname=hostname) as connection,
    ):
        return connection.version()


@pytest.mark.parametrize("hostname", ["localhost", "turnstile.example.svc", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_connects(
    issued: Issued, tmp_path: Path, hostname: str
) -> None:
    issued.write(tmp_path)
    assert _handshake(tmp_path, hostname) == "TLSv1.3"


@pytest.mark.parametrize("hostname", ["example.svc", "127.0.0.2"])
def test_a_client_that_wants_another_host_refuses(
    issued: Issued, tmp_path: Path, hostname: str
) -> None:
    issued.write(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        _handshake(tmp_path, hostname)


def test_every_address_of_a_name_is_tried(issued: Issued, tmp_path: Path) -> None:
    issued.write(tmp_path)
    with serving(tmp_path) as port:
        served = Replicas("127.0.0.1", port).fetch_served("hook.gpu.svc", timeout=60)
    assert served == {"127.0.0.1": read_certificate(issued.serving.certificate)}


def test_a_replica_without_tls_or_without_a_listener_serves_nothing() -> None:
    with answering(lambda _path, _body: (200, b"")) as port:
        assert Replicas("127.0.0.1", port).fetch_served("x", timeout=60) == {"127.0.0.1": None}
    with socket.socket() as bound:  # and so no other program listens there
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert Replicas("127.0.0.1", port).fetch_served("x") == {"127.0.0.1": None}


def test_a_name_without_an_address_has_no_replicas() -> None:
    assert Replicas("nobody.invalid", 1).fetch_served("x") == {}


@pytest.mark.parametrize(
    ("text", "host", "port"), [("a.b.svc:8443", "a.b.svc", 8443), ("[::1]:65535", "::1", 65535)]
)
def test_host_and_port_are_read(text: str, host: str, port: int) -> None:
    assert parse_replicas(text) == Replicas(host, port)


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:b", "a:0", "a:65536", "a:-1", "a:²", "[]:1"])
def test_an_invalid_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_replicas(text)
    assert str(caught.value) == f"replicas: Invalid value: {text!r}: must be HOST:PORT"
