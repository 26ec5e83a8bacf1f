"""Webhook and extender in processes of their own, spoken to over TLS."""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.common.serving.in_process import DEADLINE, HttpsClient

Json = dict[str, Any]


@dataclass
class Running(HttpsClient):
    """A server in processes of its own."""

    process: subprocess.Popen[bytes]
    port: int
    certificates: Path
    log: Path

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
        booted = (each for each in self.messages() if "Booting worker" in each["message"])
        return int([each["pid"] for each in booted][-1])


def free_port() -> int:
    """Return a port that no other program gets until this process ends: it stays bound here.

    A server may still listen on it, because servers set ``SO_REUSEADDR`` as this socket does.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    atexit.register(reserved.close)
    port: int = reserved.getsockname()[1]
    return port


Server = TypeVar("Server", bound=Running)


@contextlib.contextmanager
def running(kind: type[Server], certificates: Path, log: Path, *command: str) -> Iterator[Server]:
    """Start a program of ours, wait until it is ready, and end it.

    Args:
        kind: what speaks to it.
        certificates: its certificate, and the CA that its clients trust.
        log: for what it logs.
        command: its name, and further flags.
    """
    port = free_port()
    arguments = [sys.executable, "-m", *command, "--port", str(port)]
    arguments += ["--cert", str(certificates / "tls.crt"), "--key", str(certificates / "tls.key")]
    # A home that cannot be written, as with a read-only root file system.
    environment = {**os.environ, "HOME": "/proc/none", "PYTHONWARNINGS": "error"}
    environment.pop("XDG_RUNTIME_DIR", None)
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            arguments, stderr=stderr, env=environment, start_new_session=True
        ) as process,
    ):
        found = kind(process, port, certificates, log)
        try:
            found.wait_until_ready()
            yield found
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
