"""The time on the processor that a server spends on one review, over kept connections."""

import contextlib
import http.client
import os
import time
from pathlib import Path

from bench.servers import Running

_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
_HEADERS = {
    "User-Agent": "kube-apiserver-admission",
    "Accept": "application/json, */*",
    "Content-Type": "application/json",
}


def cpu_us(pid: int) -> float:
    """Return the time on the processor of a process and its children, in microseconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    ticks = 0
    for each in (str(pid), *children):
        # Fields 14 and 15 of proc(5), counted from behind the name, which may have spaces.
        fields = Path(f"/proc/{each}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * _TICK_US


def cpu_percent(pid: int, seconds: float) -> float:
    """Watch how much of a core a process and its children use."""
    before, began = cpu_us(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_us(pid) - before) / 1e4 / (time.monotonic() - began)


def per_review_us(server: Running, body: bytes, *, connections: int, seconds: float) -> float:
    """Send reviews for a while; return the server's time on the processor for each.

    Each connection has one review under way. The client may be slower than the server: that
    changes the rate, which is not measured here.
    """
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(server.connect()) for _ in range(connections)]
        _round(clients, body)  # warms up
        before, answered = cpu_us(server.process.pid), 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _round(clients, body)
            answered += len(clients)
        return (cpu_us(server.process.pid) - before) / answered


def _round(clients: list[http.client.HTTPSConnection], body: bytes) -> None:
    for client in clients:
        client.request("POST", "/mutate/pods?timeout=10s", body, _HEADERS)
    for client in clients:
        answer = client.getresponse()
        answer.read()
        if answer.status != 200:
            raise ConnectionError(f"answered {answer.status}")
