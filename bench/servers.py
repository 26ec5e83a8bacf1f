"""Processes that are measured: the webhook and its opponents, started and ended."""

import contextlib
import http.client
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import opponents
from certs import store
from certs.issue import issue
from certs.names import parse_subject

_START_S = 30.0


class ServerFailed(Exception):
    """A server did not come up or did not end; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready.

    Attributes:
        process: its master.
        port: on 127.0.0.1.
        ca: the PEM file that its certificate is trusted with.
        ready_s: seconds from its start until it was ready.
        log: everything it has printed.
    """

    process: "subprocess.Popen[bytes]"
    port: int
    ca: Path
    ready_s: float
    log: Path

    @property
    def url(self) -> str:
        """Where reviews of pods go."""
        return f"https://127.0.0.1:{self.port}/mutate/pods"

    def tls(self) -> ssl.SSLContext:
        """Make the client's side of TLS."""
        return ssl.create_default_context(cafile=self.ca)

    def post(self, body: bytes, context: ssl.SSLContext, *, timeout: float = 60.0) -> int:
        """Send one review over a connection of its own; give the status."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=context, timeout=timeout
        )
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/mutate/pods", body, headers)
            response = connection.getresponse()
            response.read()
            return response.status

    def metrics(self) -> Mapping[str, float]:
        """Read ``/metrics``, without the prefix of the names."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls())
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {
            name.removeprefix("gpu_turnstile_webhook_"): float(value) for name, _, value in lines
        }

    def workers(self) -> tuple[int, ...]:
        """Return the processes that answer."""
        master = self.process.pid
        text = Path(f"/proc/{master}/task/{master}/children").read_text(encoding="ascii")
        return tuple(sorted(map(int, text.split())))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def make_certificates(folder: Path) -> None:
    """Issue a certificate for 127.0.0.1."""
    subject = parse_subject([], ["127.0.0.1"], 1)
    store.write(folder, issue(subject, now=datetime.now(UTC)))


@contextlib.contextmanager
def serving(name: str, folder: Path, *, workers: int) -> Iterator[Running]:
    """Start ``webhook`` or one of the opponents, and end it.

    Args:
        name: ``webhook``, or a name of :mod:`bench.opponents`.
        folder: with certificates; gets the log.
        workers: processes.

    Raises:
        ServerFailed: it did not come up.
    """
    port, log = free_port(), folder / f"{name}-{workers}.log"
    if name == opponents.OURS:
        files = ["--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")]
        command = [sys.executable, "-m", "webhook", "--host", "127.0.0.1", "--port", str(port)]
        command += [*files, "--workers", str(workers), "--drain-delay", "0"]
    else:
        command = opponents.command(name, folder, port, workers)
    began = time.monotonic()
    with (
        log.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 -- our own program
            command, stdout=stderr, stderr=stderr
        ) as process,
    ):
        try:
            _wait(process, port, folder / "ca.crt", log)
            took = time.monotonic() - began
            yield Running(process, port, folder / "ca.crt", took, log)
        finally:
            process.terminate()
            try:
                process.wait(_START_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: "subprocess.Popen[bytes]", port: int, ca: Path, log: Path) -> None:
    context = ssl.create_default_context(cafile=ca)
    deadline = time.monotonic() + _START_S
    while True:
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=5)
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(connection),
        ):
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ServerFailed(f"{log.stem}: not ready: {text}")
        time.sleep(0.01)


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def raise_file_limit() -> int:
    """Let this process, and those it starts, open as many files as may be; give how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else os.sysconf("SC_OPEN_MAX")
