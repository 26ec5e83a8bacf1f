"""The time on the processor that a server spends on one review, over kept connections."""

import contextlib
import os
import socket
import ssl
import time
from pathlib import Path

from bench.servers import Running

_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def cpu_us(pid: int) -> float:
    """Return the time on the processor of a process and its children, in microseconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    ticks = 0
    for each in (str(pid), *children):
        fields = Path(f"/proc/{each}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # proc(5): utime, stime
    return ticks * _TICK_US


def per_review_us(server: Running, body: bytes, *, connections: int, seconds: float) -> float:
    """Send reviews for a while; return the server's time on the processor for each.

    Each connection has one review under way. The client may be slower than the server: that
    changes the rate, which is not measured here.
    """
    request = (
        b"POST /mutate/pods?timeout=10s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
        b"User-Agent: kube-apiserver-admission\r\nContent-Length: %d\r\n"
        b"Accept: application/json, */*\r\nContent-Type: application/json\r\n"
        b"Accept-Encoding: gzip\r\n\r\n%b" % (server.port, len(body), body)
    )
    context = server.tls()
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(_connect(server.port, context)) for _ in range(connections)]
        _round(clients, request)  # warms up
        before, answered = cpu_us(server.process.pid), 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _round(clients, request)
            answered += len(clients)
        return (cpu_us(server.process.pid) - before) / answered


def _connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def _round(clients: list[ssl.SSLSocket], request: bytes) -> None:
    for client in clients:
        client.sendall(request)
    for client in clients:
        _read_answer(client)


def _read_answer(client: ssl.SSLSocket) -> None:
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        if end and len(body) >= _length(head):
            break
        piece = client.recv(65536)
        if not piece:
            raise ConnectionError("the server has closed a connection")
        answer += piece
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(f"answered {answer[:40]!r}")


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ConnectionError(f"no length in {head[:40]!r}")
