"""A whole cluster of real processes in one temporary folder.

API server, scheduler and kubelet are simulated; webhook and agent are the real programs.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from certs import store
from certs.issue import issue
from certs.names import parse_subject
from contract.names import Names
from simulator.client import ApiClient, ApiError
from simulator.errors import ClusterError
from simulator.manifests import Json, write_yaml
from simulator.objects import annotations
from simulator.webhooks import simulated_configurations

NAMES = Names()
NODE = "simulated-node"
_READY_SECONDS = 120.0  # on a busy machine a process takes a quarter of a minute to start
_STOP_SECONDS = 60.0
_CHECKOUT = Path(__file__).parents[1]


class Cluster:
    """Starts everything, knows where everything is, and leaves nothing behind."""

    def __init__(
        self,
        cards: Json,
        *,
        seed: int = 0,
        kubelet_options: Sequence[str] = (),
        agent_options: Sequence[str] = (),
    ) -> None:
        self.nodes: tuple[str, ...] = (NODE,)
        self._cards = cards
        self._seed = seed
        self._kubelet_options = kubelet_options
        self._agent_options = agent_options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="turnstile-")
        self.root = Path(self._folder.name)
        self.trace = self.root / "trace.jsonl"
        servers = ("webhook", "agent", "apiserver", "extender")
        self._ports = {name: free_port() for name in servers}
        self.api = ApiClient(f"http://127.0.0.1:{self._ports['apiserver']}")

    def __enter__(self) -> Self:
        """Start everything and wait until the node offers its cards."""
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def webhook_url(self) -> str:
        """Where the webhook listens."""
        return f"https://127.0.0.1:{self._ports['webhook']}"

    @property
    def extender_url(self) -> str:
        """Where the scheduler extender listens."""
        return f"https://127.0.0.1:{self._ports['extender']}"

    def log(self, name: str) -> Path:
        """Return the file with everything a process has printed."""
        return self.root / f"{name}.log"

    def agent_log(self) -> list[dict[str, Any]]:
        """Read the agent's log so far; a line cut short by a kill is left out."""
        return read_lines(self.log("agent"))

    def start(self, name: str, *options: str, label: str = "") -> None:
        """Start a program, by its name in :meth:`_command`.

        Args:
            name: which program.
            options: further flags; they go before others.
            label: another name for the process and its log, where there are several.
        """
        with self.log(label or name).open("ab") as log, _undisturbed():
            self._processes[label or name] = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-m", *self._command(name), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.root,
                env=self.environment() | {"PYTHONWARNINGS": "default"},
            )

    @staticmethod
    def environment() -> dict[str, str]:
        """Return what is set for a program here, without settings meant for other clusters."""
        others = ("GPU_TURNSTILE", "KUBE")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        # The simulator is no part of what is installed: it runs from the checkout.
        return kept | {"PYTHONPATH": str(_CHECKOUT)}

    def kill(self, name: str, *, number: int = signal.SIGKILL) -> int:
        """End one process by a signal; give its exit status."""
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ClusterError(f"{name} did not end within {_STOP_SECONDS:g} s") from None

    def close(self) -> None:
        """End every process, politely first, and remove the folder."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self.api.close()
        self._folder.cleanup()

    def wait(self, what: str, condition: Callable[[], bool], *, within: float = 120.0) -> None:
        """Wait until *condition* holds.

        Raises:
            ClusterError: it does not in time, or a process died meanwhile.
        """
        deadline = time.monotonic() + within
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ClusterError(f"{name} has died: {self._tail(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not within {within:g} s")
            time.sleep(0.05)

    def ready(self) -> bool:
        """Return whether every node offers places of both resources, and shows its cards."""
        try:
            found = self.api.list("/api/v1/nodes")["items"]
        except ApiError:
            return False
        return {each["metadata"]["name"] for each in found if _shows(each)} == {*self.nodes}

    def pods(self) -> list[Json]:
        """List all pods."""
        items: list[Json] = self.api.list("/api/v1/pods")["items"]
        return items

    def create(self, obj: Json) -> Json:
        """Create a pod."""
        return self.api.create("/api/v1/namespaces/default/pods", obj)

    def _start_all(self) -> None:
        for name in ("kubelet", "plugins"):
            (self.root / name).mkdir()
        write_yaml(self.root / "cards.yaml", self._cards)
        subject = parse_subject(["localhost"], ["127.0.0.1"], 1)
        store.write(self.root / "certs", issue(subject, now=datetime.now(UTC)))
        ca = (self.root / "certs" / "ca.crt").read_bytes()
        made = map(json.dumps, simulated_configurations(self.webhook_url, ca))
        (self.root / "webhooks.yaml").write_text("\n---\n".join(made), encoding="utf-8")
        for name in ("apiserver", "webhook"):
            self.start(name)
        self.wait("API server", self.answers("apiserver"), within=_READY_SECONDS)
        self.start_nodes()
        self.wait("webhook", self.answers("webhook"), within=_READY_SECONDS)
        self.wait("node", self.ready, within=_READY_SECONDS)

    def start_nodes(self) -> None:
        """Start the programs of all nodes, and the scheduler."""
        for name in ("kubelet", "scheduler", "agent"):
            self.start(name)

    def answers(self, name: str) -> Callable[[], bool]:
        """Return a check whether ``apiserver``, ``webhook`` or ``extender`` is ready."""
        secure = name != "apiserver"
        port = self._ports[name]
        url = f"http{'s' if secure else ''}://127.0.0.1:{port}/{'readyz' if secure else 'healthz'}"
        context = ssl.create_default_context(cafile=self.root / "certs" / "ca.crt")

        return lambda: self.reaches(url, context if secure else None)

    @staticmethod
    def reaches(url: str, context: ssl.SSLContext | None = None) -> bool:
        """Return whether *url*, on this machine, answers with 200."""
        try:
            with urllib.request.urlopen(url, timeout=1, context=context) as answer:  # noqa: S310 -- loopback
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _command(self, name: str) -> list[str]:
        server, root = self.api.server, self.root
        sockets = f"--plugin-dir {root}/plugins --pod-resources-socket {root}/podres.sock"
        seed = f"--seed {self._seed}"
        commands = {
            "apiserver": f"simulator apiserver --port {self._ports['apiserver']} {seed} "
            "--manifests webhooks.yaml --kubeconfig kubeconfig",
            "scheduler": f"simulator scheduler --server {server} {seed}",
            # One replica alone needs no Lease.
            "extender": f"scheduler --host 127.0.0.1 --port {self._ports['extender']} "
            f"--cert certs/tls.crt --key certs/tls.key "
            "--kubeconfig kubeconfig --lease=",
            "kubelet": f"simulator kubelet --server {server} --node-name {NODE} {seed} {sockets} "
            f"--root-dir kubelet --trace {self.trace}",
            "webhook": f"webhook --host 127.0.0.1 --port {self._ports['webhook']} "
            f"--cert certs/tls.crt --key certs/tls.key",
            "view": "view serve --kubeconfig kubeconfig",
            "agent": f"agent --node-name {NODE} --kubeconfig kubeconfig --cards cards.yaml "
            f"--kubelet-dir {root}/plugins {sockets} --state-dir {root}/state "
            f"--cri-socket {root}/cri.sock --http-host 127.0.0.1 "
            f"--http-port {self._ports['agent']}",
        }
        options = {"kubelet": self._kubelet_options, "agent": self._agent_options}
        return [*commands[name].split(), *options.get(name, ())]

    def _tail(self, name: str) -> str:
        return self.log(name).read_text(encoding="utf-8", errors="replace")[-2000:]


def _shows(node: Json) -> bool:
    offered = (node.get("status") or {}).get("allocatable") or {}
    places = all(offered.get(each, "0") != "0" for each in (NAMES.core, NAMES.memory))
    return places and NAMES.gpu_cards in annotations(node)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back while a process is started: nobody would know it to end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:
        signal.raise_signal(came[0])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; what is no JSON object is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            decoded = json.loads(line)
        except ValueError:
            continue
        if isinstance(decoded, dict):
            found.append(decoded)
    return found


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
