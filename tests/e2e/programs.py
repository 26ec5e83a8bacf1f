"""The webhook and the agent as processes."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.cluster import read_lines

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
        """End it and wait; one that does not end in time is killed, and that is an error."""
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
        """Let :meth:`events` begin here."""
        self._mark = len(read_lines(self.log))

    def events(self, event: str) -> list[dict[str, Any]]:
        """Give the log lines of *event* since the mark."""
        return [each for each in read_lines(self.log)[self._mark :] if each.get("message") == event]

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


def issue_certificates(folder: Path, host: str) -> None:
    """Make a CA and a serving certificate for *host*, with the project's own command."""
    with tempfile.TemporaryFile() as output:
        subprocess.run(
            [sys.executable, "-m", "certs", "issue", "--out", str(folder), "--ip", host],
            check=True,
            stdout=output,
            timeout=_STOP_SECONDS,
        )
