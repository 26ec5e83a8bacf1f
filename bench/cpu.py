"""The time on the processor that a server spends on one review, over kept connections."""

import contextlib
import re
import socket
import time

from bench.process import cpu_us
from bench.servers import RunningServer

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def per_review_us(server: RunningServer, body: bytes, *, connections: int, seconds: float) -> float:
    """Send reviews for a while; return the server's time on the processor for each.

    Each connection has one review under way. The client may be slower than the server: that
    changes the rate, which is not measured here.
    """
    request = (  # in one piece, as the API server's buffer sends it
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
        before, answered = cpu_us(server.process.pid), 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _round(sockets, request)
            answered += len(sockets)
        return (cpu_us(server.process.pid) - before) / answered


def _round(sockets: list[socket.socket], request: bytes) -> None:
    for each in sockets:
        each.sendall(request)
    for each in sockets:
        _read_answer(each)


def _read_answer(client: socket.socket) -> None:
    """Read it as fast as can be: a slow client changes how many reviews the server sees at once."""
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if end else None
        if length and len(body) >= int(length[1]):
            break
        piece = client.recv(65536)
        if not piece:
            raise ConnectionError("the server has closed a connection")
        answer += piece
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(f"answered {answer[:40]!r}")
