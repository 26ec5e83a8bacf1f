"""Logs of all programs of ours on this node, read as they grow, also of containers that ended."""

import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

_LOGS = Path("/var/log/pods")
_MOST_TRACES = 20


class NodeLogs:
    """Counts warnings and errors, and keeps stack traces.

    Attributes:
        counts: (program, level, text) -> how often.
        traces: the first stack traces.
    """

    def __init__(self, *namespaces: str, folder: Path = _LOGS) -> None:
        self._namespaces = namespaces
        self._folder = folder
        self._read: dict[tuple[str, int], int] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.reasons: Counter[tuple[str, str, str]] = Counter()
        self.traces: list[str] = []

    def read(self) -> None:
        """Read what has been added since the last call."""
        for namespace in self._namespaces:
            for path in self._folder.glob(f"{namespace}_*/*/*.log"):
                with suppress(OSError):  # its pod was deleted
                    self._read_file(path)

    def _read_file(self, path: Path) -> None:
        key = str(path.parent), path.stat().st_ino
        with path.open("rb") as file:
            file.seek(self._read.get(key, 0))
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read[key] = self._read.get(key, 0) + len(whole)
        for line in whole.decode(errors="replace").splitlines():
            # TIME STREAM F|P TEXT, by the container runtime interface
            self._count(path.parent.name, line.split(" ", 3)[-1])

    def _count(self, program: str, text: str) -> None:
        line: dict[str, Any] = {}
        with suppress(ValueError):
            decoded = json.loads(text)
            line = decoded if isinstance(decoded, dict) else {}
        if not line:
            if "Traceback" in text or re.match(r"\w*(Error|Exception)\b", text):
                self._trace(program, text)
            return
        if line.get("exception"):
            self._trace(program, f"{line.get('message')}: {line['exception']}")
        level = str(line.get("level"))
        if level in ("warning", "error"):
            message = str(line.get("message"))
            self.counts[program, level, message] += 1
            reason = re.sub(r"[0-9a-f]{8}-[-0-9a-f]+|\d+", "N", str(line.get("reason", "")))
            self.reasons[program, message, reason[:160]] += 1

    def _trace(self, program: str, text: str) -> None:
        self.counts[program, "error", "stack trace"] += 1
        if len(self.traces) < _MOST_TRACES:
            self.traces.append(f"{program}: {text}")
