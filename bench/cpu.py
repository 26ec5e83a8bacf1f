"""CPU time that a server spends on one review, over kept connections."""

import contextlib
import re
import socket
import time

from bench.process import cpu_us
from bench.servers import RunningServer

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def per_review_us(server: RunningServer, body: bytes, *, connections: int, seconds: float) -> float:
    """Send reviews for *seconds*; return the server's CPU time for each, in microseconds.

    Each connection has one review in progress. If the client is slower than the server, only the
    rate changes, which is not measured here.
    """
    request = (  # sent as one piece, as the API server's buffer does
        b"POST /mutate/pods?timeout=10s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
        b"User-Agent: kube-apiserver-admission\r\nContent-Length: %d\r\n"
        b"Accept: application/json, */*\r\nContent-Type: application/json\r\n"
        b"Accept-Encoding: gzip\r\n\r\n%b" % (server.port, len(body), body)
    )
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(server.connect()) for _ in range(connections)]
        for each in clients:
            each.connect()
        sockets = [each.sock for each in clients]
        _round(sockets, request)  # warms up
        before, done = cpu_us(server.process.pid), 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _round(sockets, request)
            done += len(sockets)
        return (cpu_us(server.process.pid) - before) / done


def _round(sockets: list[socket.socket], request: bytes) -> None:
    for each in sockets:
        each.sendall(request)
    for each in sockets:
        _read_response(each)


def _read_response(client: socket.socket) -> None:
    """Read a response fast: a slow client changes how many reviews the server has at once."""
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if end else None
        if length and len(body) >= int(length[1]):
            break
        piece = client.recv(65536)
        if not piece:
            raise ConnectionError("the server closed a connection")
        received += piece
    if not received.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(f"unexpected response {received[:40]!r}")
