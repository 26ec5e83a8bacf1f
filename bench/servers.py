"""Servers that are measured: each is a process that answers over TLS."""

import contextlib
import http.client
import os
import resource
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bench.process import WITHIN_S, Process, children, running, wait
from certs import store
from certs.issue import issue
from certs.names import parse_subject


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready.

    Attributes:
        process: its master.
        tls: the client's side of TLS.
        ready_s: seconds from its start until it was ready.
    """

    process: Process
    port: int
    tls: ssl.SSLContext
    ready_s: float

    @contextlib.contextmanager
    def connect(self, *, timeout: float = 60.0) -> Iterator[http.client.HTTPSConnection]:
        """Hand over a connection, which is made when it is used first."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.tls, timeout=timeout
        )
        with contextlib.closing(connection):
            yield connection

    def post(self, body: bytes, *, timeout: float = 60.0) -> int:
        """Send one review over a connection of its own; return the status."""
        with self.connect(timeout=timeout) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/mutate/pods", body, headers)
            response = connection.getresponse()
            response.read()
            return response.status

    def workers(self) -> tuple[int, ...]:
        """Return the processes that answer."""
        return children(self.process.pid)


def make_certificates(folder: Path) -> None:
    """Issue a certificate for 127.0.0.1."""
    subject = parse_subject([], ["127.0.0.1"], 1)
    store.write(folder, issue(subject, now=datetime.now(UTC)))


@contextlib.contextmanager
def serving(
    arguments: Sequence[str], folder: Path, port: int, *, within: float = WITHIN_S
) -> Iterator[RunningServer]:
    """Start a server of ours or an opponent, and end it.

    Args:
        arguments: of Python's ``-m``: what serves on 127.0.0.1 with the certificates of *folder*.
        folder: gets the log, too.
        port: where it will serve.
        within: seconds that it has to be ready.

    Raises:
        ProcessFailed: it did not come up.
    """
    tls = ssl.create_default_context(cafile=folder / "ca.crt")
    began = time.monotonic()
    with running(arguments, folder / f"{port}.log") as process:
        server = RunningServer(process, port, tls, 0.0)

        def ready() -> bool:
            # Each look at a server that is not ready takes CPU from it.
            time.sleep(max(0.01, (time.monotonic() - began) / 50))
            return _is_ready(server)

        wait(ready, f"port {port} is ready", process, within=within)
        yield replace(server, ready_s=time.monotonic() - began)


def _is_ready(server: RunningServer) -> bool:
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        server.connect(timeout=30) as connection,
    ):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False


def raise_file_limit() -> int:
    """Let this process, and those it starts, open as many files as may be; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else os.sysconf("SC_OPEN_MAX")
