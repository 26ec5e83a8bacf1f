"""Requests from an event loop: connections are kept, and whatever goes wrong is one of three."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
import yaml

from common.apiserver.client import Client, Json
from common.apiserver.concurrent import ConcurrentClient
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"kind": "x"}'
HANG = b"hang"


class Server:
    """An API server that answers as it is told, connection by connection."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []
        self.connections = self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = head.partition("Content-Length: ")[2].partition("\r")[0]
                body = await reader.readexactly(int(length))
                self.requests.append(head + body.decode())
                answer = self.answers.pop(0)
                if answer == HANG:
                    await reader.read()
                writer.write(answer)
                if b"Content-Length" not in answer or b"close" in answer:
                    break
        writer.transport.abort()
        self.open -= 1


def ask(
    folder: Path,
    server: Server,
    talk: Callable[[ConcurrentClient], Awaitable[None]],
    *,
    trusted: bool = True,
    tls: bool = True,
) -> None:
    """Run *talk* against a server with TLS."""
    authority = trustme.CA()
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(folder / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def run() -> None:
        running = await asyncio.start_server(
            server.serve, "127.0.0.1", 0, ssl=context if tls else None
        )
        port = running.sockets[0].getsockname()[1]
        cluster = {
            "server": f"http{'s' if tls else ''}://127.0.0.1:{port}/base/",
            "certificate-authority": str(folder / "ca.crt"),
        }
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "secret"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        async with running:
            client = ConcurrentClient(Client(path, user_agent="us"))
            try:
                await talk(client)
            finally:
                client.close()
                while server.open:  # noqa: ASYNC110 - the other side
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)

    asyncio.run(run())


async def _get(client: ConcurrentClient, within: float = 30) -> Json:
    return await client.call("GET", "/a", timeout=within)


@pytest.mark.parametrize("tls", [True, False])
def test_a_connection_is_kept_and_carries_the_credentials(tmp_path: Path, *, tls: bool) -> None:
    server = Server(OK, OK, OK.replace(b"200 OK", b"201 Created"))

    async def talk(client: ConcurrentClient) -> None:
        assert await _get(client) == {"kind": "x"}
        await client.call("POST", "/b%20c", {"d": "é"}, timeout=30, query={"z": "1", "a": "&"})
        await client.call("PATCH", "/e", {}, timeout=30)

    ask(tmp_path, server, talk, tls=tls)
    assert server.connections == 1
    first, second, third = server.requests
    assert first.startswith("GET /base/a HTTP/1.1\r\n")
    for field in ("authorization: Bearer secret", "User-Agent: us", "Host: 127.0.0.1:"):
        assert field in first
    assert second.startswith("POST /base/b%20c?a=%26&z=1 HTTP/1.1\r\n")
    assert "Content-Type: application/json\r\n" in second
    assert json.loads(second.partition("\r\n\r\n")[2]) == {"d": "é"}
    assert "Content-Type: application/merge-patch+json\r\n" in third


def _status(code: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Reason\r\nContent-Length: %d\r\n\r\n%s" % (code, len(body), body)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (_status(410, b'{"message": "old"}'), Gone, "old"),
        (_status(404, b'{"message": "none"}'), Rejected, "none"),
        (_status(403, b"<html>"), Rejected, "Reason"),
        (_status(429, b"{}"), Unavailable, "API server: 429 Reason"),
        (_status(503, b'{"message": "away"}'), Unavailable, "API server: 503 away"),
        (_status(200, b"[1]"), Unavailable, "API server: answered with something that is no obj"),
        (_status(200, b"x"), Unavailable, "API server: Expecting value"),
        (b"SSH-2.0-x\r\n\r\n", Unavailable, "API server: answered with something that is no HTTP"),
        (b"", Unavailable, "API server: the connection was closed"),
        (OK[:-3], Unavailable, "API server: no answer in 1 s"),
        (HANG, Unavailable, "API server: no answer in 1 s"),
    ],
)
def test_what_goes_wrong_is_told_apart_and_the_next_request_is_made(
    tmp_path: Path, answer: bytes, error: type[Exception], text: str
) -> None:
    server = Server(answer, OK)

    async def talk(client: ConcurrentClient) -> None:
        with pytest.raises(error, match=f"^{text}"):
            await _get(client, 1)
        assert await _get(client) == {"kind": "x"}

    ask(tmp_path, server, talk)
    assert server.connections == (1 if answer.startswith(b"HTTP") and answer != OK[:-3] else 2)


def test_a_connection_that_the_server_ends_is_not_used_again(tmp_path: Path) -> None:
    server = Server(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK)

    async def talk(client: ConcurrentClient) -> None:
        for _ in range(2):
            assert await _get(client) == {"kind": "x"}

    ask(tmp_path, server, talk)
    assert server.connections == 2


def test_a_server_with_another_certificate_is_told_nothing(tmp_path: Path) -> None:
    server = Server(OK)

    async def talk(client: ConcurrentClient) -> None:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await _get(client)

    ask(tmp_path, server, talk, trusted=False)
    assert server.requests == []


def test_requests_wait_for_their_turn(tmp_path: Path) -> None:
    server = Server(*[OK] * 40)

    async def talk(client: ConcurrentClient) -> None:
        await asyncio.gather(*(_get(client) for _ in range(40)))

    ask(tmp_path, server, talk)
    assert server.connections == 32
