"""Real handshakes with real servers."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from certs import store
from certs.errors import InvalidField
from certs.issue import Issued
from certs.reading import read_certificate
from certs.replicas import Replicas, parse_replicas


@contextlib.contextmanager
def serving(directory: Path | None) -> Iterator[int]:
    """Answer one connection after the other: with TLS, or by hanging up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if directory is not None:
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    if over.is_set():
                        return
                    if directory is not None:
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield port
        finally:
            over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join(30)


def test_everybody_behind_a_name_is_asked(issued: Issued, tmp_path: Path) -> None:
    store.write(tmp_path, issued)
    with serving(tmp_path) as port:
        served = Replicas("127.0.0.1", port).ask("hook.gpu.svc")
    assert served == {"127.0.0.1": read_certificate(issued.serving.certificate)}


def test_who_does_not_speak_tls_serves_nothing() -> None:
    with serving(None) as port:
        assert Replicas("127.0.0.1", port).ask("x") == {"127.0.0.1": None}


def test_who_does_not_listen_serves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert Replicas("127.0.0.1", port).ask("x") == {"127.0.0.1": None}


def test_a_name_that_stands_for_nobody_gives_nobody() -> None:
    assert Replicas("nobody.invalid", 1).ask("x") == {}


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a.b.svc:8443", "a.b.svc", 8443),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_host_and_port_are_read(text: str, host: str, port: int) -> None:
    assert parse_replicas(text) == Replicas(host, port)


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:b", "a:0", "a:65536", "a:-1", "a:²", "[]:1"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_replicas(text)
    assert str(caught.value) == f"replicas: Invalid value: {text!r}: must be HOST:PORT"
