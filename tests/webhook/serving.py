"""``python -m webhook`` in processes of its own, spoken to over TLS."""

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
DEADLINE = 60
JSON = {"Content-Type": "application/json"}


@dataclass
class Running:
    """A webhook in processes of its own."""

    process: subprocess.Popen[bytes]
    port: int
    certificates: Path
    log: Path

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        plain = self.plain()
        try:
            return (context or self.tls()).wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    def http(self, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            "localhost", self.port, context=context or self.tls(), timeout=DEADLINE
        )

    def get(self, path: str) -> tuple[int, str]:
        with contextlib.closing(self.http()) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def post(
        self, body: Any, *, chunked: bool = False, context: ssl.SSLContext | None = None
    ) -> tuple[int, str]:
        with contextlib.closing(self.http(context)) as connection:
            connection.request("POST", "/mutate/pods", body, JSON, encode_chunked=chunked)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def metrics(self) -> dict[str, float]:
        lines = [each.rpartition(" ") for each in self.get("/metrics")[1].splitlines()]
        prefix = "gpu_turnstile_webhook_"
        return {
            name.removeprefix(prefix): float(value)
            for name, _, value in lines
            if name.startswith(prefix)
        }

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                return self.get("/readyz")[0] == 200
            return False

        self.wait(ready)

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not holds():
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.02)

    def messages(self) -> list[Json]:
        # At the very end the interpreter may complain, in its own words, of gunicorn's heartbeat
        # file being closed twice.
        lines = self.log.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def worker(self) -> int:
        """Return the process that serves."""
        booted = (each for each in self.messages() if "Booting worker" in each["message"])
        return int([each["pid"] for each in booted][-1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    certificates: Path, directory: Path, *options: str, serving: Path | None = None
) -> Iterator[Running]:
    """Start one, wait until it is ready, and end it.

    Args:
        certificates: with the CA that its clients trust.
        directory: for its log.
        options: further flags.
        serving: where its own certificate is, when not in *certificates*.
    """
    port, log = free_port(), directory / "log"
    files = serving or certificates
    arguments = [sys.executable, "-m", "webhook", "--port", str(port)]
    arguments += ["--cert", str(files / "tls.crt"), "--key", str(files / "tls.key")]
    arguments += ["--drain-delay", "0.2", *options]
    # A home that cannot be written, as with a read-only root file system.
    environment = {**os.environ, "HOME": "/proc/none", "PYTHONWARNINGS": "error"}
    environment.pop("XDG_RUNTIME_DIR", None)
    with (
        log.open("wb") as stderr,
        subprocess.Popen(arguments, stderr=stderr, env=environment) as process,
    ):
        found = Running(process, port, certificates, log)
        try:
            found.wait_until_ready()
            yield found
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
