"""The container runtime: the containers and their edits. It survives the kubelet.

It writes one JSON file for each pod. Containers of a killed kubelet keep running; :meth:`reboot`
ends them all.
"""

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.kubelet.files import write_atomically


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One container in the runtime.

    Attributes:
        exit_code: of its last end.
        started_at: unix seconds, of its last start.
        finish_at: unix seconds when it ends by itself; ``None`` for never.
        received: the container edits of its last start.
    """

    running: bool
    exit_code: int = 0
    starts: int = 1
    started_at: float = 0.0
    finish_at: float | None = None
    received: dict[str, Any] = field(default_factory=dict)


class SimulatedRuntime:
    """All containers of the node. Safe between threads.

    Args:
        directory: for its files; kept across restarts of the kubelet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, ContainerRun]] = {}
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.glob("*.json")):
            containers = json.loads(path.read_text(encoding="utf-8"))
            self._pods[path.stem] = {name: ContainerRun(**run) for name, run in containers.items()}

    def get(self, uid: str, container: str) -> ContainerRun | None:
        """Return one container; ``None`` if it was never started."""
        with self._lock:
            return self._pods.get(uid, {}).get(container)

    def running(self) -> frozenset[tuple[str, str]]:
        """Return (pod UID, container) of all running containers."""
        with self._lock:
            return frozenset(
                (uid, name)
                for uid, containers in self._pods.items()
                for name, run in containers.items()
                if run.running
            )

    def start(
        self,
        uid: str,
        container: str,
        received: dict[str, Any],
        *,
        now: float,
        finish_at: float | None,
    ) -> ContainerRun:
        """Start a container, for the first time or again."""
        with self._lock:
            containers = self._pods.setdefault(uid, {})
            before = containers.get(container)
            run = ContainerRun(
                running=True,
                starts=1 if before is None else before.starts + 1,
                started_at=now,
                finish_at=finish_at,
                received=received,
            )
            containers[container] = run
            self._write(uid)
            return run

    def finish(self, uid: str, container: str, exit_code: int) -> None:
        """End a running container."""
        with self._lock:
            run = self._pods.get(uid, {}).get(container)
            if run is not None and run.running:
                self._pods[uid][container] = replace(run, running=False, exit_code=exit_code)
                self._write(uid)

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        with self._lock:
            if self._pods.pop(uid, None) is not None:
                (self._directory / f"{uid}.json").unlink(missing_ok=True)

    def reboot(self) -> None:
        """End all containers at once, as a node reboot does."""
        with self._lock:
            for uid, containers in self._pods.items():
                for name, run in containers.items():
                    if run.running:
                        containers[name] = replace(run, running=False, exit_code=137)
                self._write(uid)

    def _write(self, uid: str) -> None:
        text = json.dumps({name: asdict(run) for name, run in self._pods[uid].items()})
        write_atomically(self._directory / f"{uid}.json", text)
