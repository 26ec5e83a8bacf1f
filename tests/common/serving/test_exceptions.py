"""Every exception of a library that can reach an edge is mapped: a new one turns a test red."""

import asyncio
import inspect
import math
import socket
import ssl
from types import ModuleType
from typing import Any

import httptools
import pytest
from cryptography import exceptions as cryptography_exceptions
from cryptography import x509

from common.serving.expiry import not_after
from tests.common.serving.stages import GET, ConnectionStage, Make, run


def _exceptions(*modules: ModuleType) -> list[type[Exception]]:
    found = {
        value
        for module in modules
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Exception)
    }
    return sorted(found, key=lambda each: each.__name__)


ABOUT_OTHER_THINGS = {  # extensions, names, requests, keys and signatures: nothing of it is read
    "AlreadyFinalized",
    "AlreadyUpdated",
    "AttributeNotFound",
    "DuplicateExtension",
    "ExtensionNotFound",
    "InternalError",
    "InvalidKey",
    "InvalidSignature",
    "InvalidTag",
    "NotYetFinalized",
    "UnsupportedGeneralNameType",
}


@pytest.mark.parametrize(
    "error",
    [
        *(
            each
            for each in _exceptions(x509, cryptography_exceptions)
            if each.__name__ not in ABOUT_OTHER_THINGS
        ),
        ValueError,
    ],
)
def test_a_certificate_that_cryptography_cannot_read_has_no_known_end(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: bytes) -> None:
        raise x509.InvalidVersion("x", 9) if error is x509.InvalidVersion else error("x")

    monkeypatch.setattr(x509, "load_pem_x509_certificate", fail)
    assert math.isnan(not_after(b""))


class FailingParser:
    """A parser that fails in one way."""

    error: Exception

    def __init__(self, _: object) -> None: ...

    def feed_data(self, _: bytes) -> None:
        raise self.error


@pytest.mark.parametrize("error", _exceptions(httptools))
def test_whatever_the_parser_raises_ends_the_connection(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httptools, "HttpRequestParser", FailingParser)
    monkeypatch.setattr(FailingParser, "error", error(0), raising=False)
    stage = ConnectionStage()
    if error is httptools.HttpParserCallbackError:  # our own mistake: asyncio logs it
        with pytest.raises(error):
            stage.receive(GET)
        return
    stage.receive(GET)
    assert stage.transport.closed
    expected = [] if error is httptools.HttpParserUpgrade else [b"the request could not be read\n"]
    assert stage.answers == expected


OF_SOCKETS = [
    *(each for each in _exceptions(ssl) if issubclass(each, ssl.SSLError)),
    *ConnectionError.__subclasses__(),
    *(TimeoutError, OSError),
]


@pytest.mark.parametrize("error", OF_SOCKETS)
def test_whatever_a_handshake_raises_leaves_nothing(
    error: type[OSError], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with make() as stage:

            async def fail(_: Any, accepted: socket.socket, **__: object) -> None:
                accepted.close()
                raise error("x")

            monkeypatch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", fail)
            client = await stage.run(lambda: socket.create_connection(stage.address, timeout=30))
            stage.clients.append(client)
            assert await stage.run(lambda: client.recv(1)) == b""
            await stage.wait(lambda: stage.told.open == 0)
            timed_out = {("handshake", "timeout"): 1} if error is ConnectionAbortedError else {}
            assert stage.told.ends == timed_out

    run(test)
