"""The webhook and the agent as processes."""

import os
import shlex
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract.names import Names
from simulator.cluster import free_port, read_lines
from simulator.webhooks import set_address
from tests.e2e.cluster import ApiError, Cluster, Json
from tests.e2e.ground import wait
from tests.e2e.manifests import webhooks

_STOP_SECONDS = 30.0


class Program:
    """``python -m NAME``, started, killed and started again, with one log file throughout."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = 0
        self.log = log
        log.touch()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONWARNINGS": "default"},
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait; fail if it has to be killed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self._arguments[0]} did not end: {self.tail()}") from None

    def beside(self, arguments: Sequence[str]) -> "Program":
        """Make another one that writes to the same log; :meth:`events` are those of both."""
        made = Program(arguments, self.log)
        made._mark = self._mark
        return made

    def mark(self) -> None:
        """Make :meth:`events` start here."""
        self._mark = len(read_lines(self.log))

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of *event* since the mark."""
        return [each for each in read_lines(self.log)[self._mark :] if each.get("message") == event]

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


class Webhook(Program):
    """The webhook, for the pods of one namespace.

    Args:
        cluster: the cluster, and the namespace.
        folder: for certificates and the log.
        host: the address at which the API server reaches this host.
        options: further flags.
    """

    def __init__(self, cluster: Cluster, folder: Path, host: str, *options: str) -> None:
        port = free_port()
        self._cluster = cluster
        self._certificates = folder / "certs"
        self._host = host
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        super().__init__(
            [
                *shlex.split(
                    f"webhook --host {host} --port {port} "
                    f"--cert {folder}/certs/tls.crt --key {folder}/certs/tls.key"
                ),
                *options,
            ],
            folder / "webhook.log",
        )

    def start(self) -> None:
        """Start it and wait until it is ready."""
        if not self._certificates.exists():
            issue_certificates(self._certificates, self._host)
        super().start()
        context = ssl.create_default_context(cafile=self._certificates / "ca.crt")

        def ready() -> bool:
            url = f"{self._url}/readyz"
            try:
                with urllib.request.urlopen(url, timeout=2, context=context) as response:
                    return bool(response.status == 200)
            except (urllib.error.URLError, OSError):
                assert self.alive, f"the webhook has ended: {self.tail()}"
                return False

        wait("the webhook", ready)

    def install(self, configuration: Json) -> None:
        """Create a configuration as shipped, with the address of this webhook."""
        set_address(configuration, self._url, (self._certificates / "ca.crt").read_bytes())
        self._cluster.create_webhooks(configuration)

    def configure(self, probe: Json, names: Names) -> str | None:
        """Make the API server call it; return why it cannot, ``None`` if *probe* was stamped."""
        self.install(webhooks(self._cluster.namespace))
        reason = ""

        def reached() -> bool:
            nonlocal reason
            try:
                made = self._cluster.create(probe, dry_run=True)
            except ApiError as error:
                reason = str(error)
                return False
            return names.admission_order in (made["metadata"].get("annotations") or {})

        try:
            wait("the API server calls the webhook", reached, within=30)
        except AssertionError as error:
            return f"{error}: {reason or 'it does not call it'}"
        return None


def issue_certificates(folder: Path, host: str) -> None:
    """Make a CA and a serving certificate for *host*, with the project's own command."""
    with tempfile.TemporaryFile() as output:
        subprocess.run(
            [sys.executable, "-m", "certs", "issue", "--out", str(folder), "--ip", host],
            check=True,
            stdout=output,
            timeout=_STOP_SECONDS,
        )
