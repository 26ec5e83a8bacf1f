"""The measured servers: each is a process that serves over TLS."""

import contextlib
import http.client
import resource
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bench.process import WITHIN_S, Process, children, running, wait
from certs.issue import issue
from certs.names import parse_subject


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready.

    Attributes:
        process: its master process.
        port: the port on 127.0.0.1.
        tls: the TLS context for clients.
        ready_s: seconds from its start until it was ready.
    """

    process: Process
    port: int
    tls: ssl.SSLContext
    ready_s: float

    @contextlib.contextmanager
    def connect(self, *, timeout: float = 60.0) -> Iterator[http.client.HTTPSConnection]:
        """Yield a connection; it connects with its first request."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.tls, timeout=timeout
        )
        with contextlib.closing(connection):
            yield connection

    def post(self, body: bytes, *, timeout: float = 60.0) -> int:
        """Send one review over a new connection; return the HTTP status."""
        with self.connect(timeout=timeout) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/mutate/pods", body, headers)
            response = connection.getresponse()
            response.read()
            return response.status

    def workers(self) -> tuple[int, ...]:
        """Return the PIDs of the worker processes."""
        return children(self.process.pid)


def make_certificates(folder: Path) -> None:
    """Write a CA and a certificate for 127.0.0.1 to *folder*."""
    subject = parse_subject([], ["127.0.0.1"], 1)
    issue(subject, now=datetime.now(UTC)).write(folder)


@contextlib.contextmanager
def serving(
    arguments: Sequence[str], folder: Path, port: int, *, within: float = WITHIN_S
) -> Iterator[RunningServer]:
    """Start a server, ours or a compared one, and end it.

    Args:
        arguments: module and arguments for ``python -m``; they serve on 127.0.0.1 with the
            certificates of *folder*.
        folder: the folder of the certificates; it also gets the log.
        port: the port of the server.
        within: timeout in seconds until it is ready.

    Raises:
        ProcessFailed: it did not become ready.
    """
    tls = ssl.create_default_context(cafile=folder / "ca.crt")
    began = time.monotonic()
    with running(arguments, folder / f"{port}.log") as process:
        server = RunningServer(process, port, tls, 0.0)

        def ready() -> bool:
            # Each check takes CPU time from the starting server.
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


def raise_file_limit() -> None:
    """Raise the limit of open files of this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
