"""A whole cluster of real processes in one temporary folder.

API server, scheduler and kubelets are simulated; webhook, agents and extender are the real
programs. Each program has a name; a node's programs have the node's name in it: ``agent-node-1``.
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
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from certs.issue import issue
from certs.names import parse_subject
from contract.inventory import PublishedInventory, decode_inventory
from contract.names import Names
from simulator.cards import cards_of
from simulator.client import ApiClient, ApiError
from simulator.errors import ProcessDied
from simulator.kubelet.trace import TraceEvent
from simulator.manifests import Json, read_manifests, write_yaml
from simulator.objects import annotations, path_of
from simulator.webhooks import simulated_configurations

NAMES = Names()
NODE = "node-1"
"""The first node, or the only one."""
SHIPPED = Path(__file__).parents[1] / "deploy/components/scheduler-extender/kube-scheduler.yaml"
_STOP_SECONDS = 120.0
_WAIT_SECONDS = 600.0
"""Only a program that hangs misses it: one that has ended is noticed at once."""
_CLEANUPS = 50
_CHECKOUT = Path(__file__).parents[1]


class SimulatedCluster:
    """Starts all programs; closing it ends every process and removes the folder.

    Args:
        cards: returns the cards file of a node by its number.
        seed: seed of every random choice.
        kubelet_options, agent_options: further flags of each kubelet, and of each agent.
    """

    def __init__(
        self,
        cards: Callable[[int], Json] = cards_of,
        *,
        seed: int = 0,
        kubelet_options: Sequence[str] = (),
        agent_options: Sequence[str] = (),
    ) -> None:
        self.nodes: list[str] = []
        self._cards = cards
        self._seed = seed
        self._options = {"kubelet": kubelet_options, "agent": agent_options}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="turnstile-")
        self.root = Path(self._folder.name)
        self._reserved = {name: reserve_port() for name in ("webhook", "apiserver", "extender")}
        self._ports = {name: port.getsockname()[1] for name, port in self._reserved.items()}
        self.api = ApiClient(f"http://127.0.0.1:{self._ports['apiserver']}")

    def __enter__(self) -> Self:
        """Start a cluster without nodes, and wait for its API server."""
        try:
            self._start_control_plane()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def webhook_url(self) -> str:
        """The base URL of the webhook."""
        return f"https://127.0.0.1:{self._ports['webhook']}"

    def log(self, name: str) -> Path:
        """Return the file with all output of a process."""
        return self.root / f"{name}.log"

    def agent_log(self, node: str = NODE) -> list[dict[str, Any]]:
        """Read the log of a node's agent; a line that a kill cut short is left out."""
        return read_lines(self.log(f"agent-{node}"))

    def trace(self, node: str = NODE) -> list[TraceEvent]:
        """Read the trace of a node's kubelet."""
        return [TraceEvent(**each) for each in read_lines(self.root / node / "trace.jsonl")]

    def start(self, name: str, *options: str) -> None:
        """Start a program, with further flags."""
        with self.log(name).open("ab") as log, _signals_delayed():
            self._processes[name] = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-m", *self._command(name), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.root,
                env=self.environment() | {"PYTHONWARNINGS": "default"},
                process_group=0,
            )

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment of a program, without settings for other clusters."""
        others = ("GPU_TURNSTILE", "KUBE")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        # The simulator is not installed: it runs from the checkout.
        return kept | {"PYTHONPATH": str(_CHECKOUT)}

    def kill(self, name: str, *, number: int = signal.SIGKILL) -> int:
        """End one process with a signal; return its exit status.

        Raises:
            ProcessDied: the process did not end in time; it is killed then.
        """
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ProcessDied(f"{name} did not end within {_STOP_SECONDS:g} s") from None

    def close(self) -> None:
        """Kill every process with its children; remove the folder."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        self.api.close()
        for port in self._reserved.values():
            port.close()
        for _ in range(_CLEANUPS):  # children of a killed process may still write for a moment
            try:
                self._folder.cleanup()
                return
            except OSError:
                time.sleep(0.1)
        self._folder.cleanup()

    def wait(
        self, what: str, condition: Callable[[], bool], *, within: float = _WAIT_SECONDS
    ) -> None:
        """Wait until *condition* holds.

        Raises:
            ProcessDied: the time is over, or a process died.
        """
        deadline = time.monotonic() + within
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ProcessDied(f"{name} died: {self._tail(name)}")
            if time.monotonic() > deadline:
                raise ProcessDied(f"{what}: not within {within:g} s")
            time.sleep(0.05)

    def ready(self) -> bool:
        """Return whether every node has devices of both resources, and publishes its cards."""
        try:
            found = self.api.list("/api/v1/nodes")["items"]
        except ApiError:
            return False
        return {each["metadata"]["name"] for each in found if _is_published(each)} == {*self.nodes}

    def pods(self) -> list[Json]:
        """List all pods."""
        items: list[Json] = self.api.list("/api/v1/pods")["items"]
        return items

    def create(self, obj: Json) -> Json:
        """Create a pod."""
        return self.api.create("/api/v1/namespaces/default/pods", obj)

    def _start_control_plane(self) -> None:
        subject = parse_subject(["localhost"], ["127.0.0.1"], 1)
        issue(subject, now=datetime.now(UTC)).write(self.root / "certs")
        ca = (self.root / "certs" / "ca.crt").read_bytes()
        made = map(json.dumps, simulated_configurations(self.webhook_url, ca))
        (self.root / "webhooks.yaml").write_text("\n---\n".join(made), encoding="utf-8")
        for name in ("apiserver", "webhook"):
            self.start(name)
        self.wait("API server", self.ready_check("apiserver"))
        self.start("scheduler")

    def clear(self) -> None:
        """Delete all pods, and wait until none exists."""
        for each in self.pods():
            self.api.delete(path_of(each))
        self.wait("deletion", lambda: not self.pods())

    def start_nodes(self, *names: str) -> None:
        """Start a kubelet and an agent for each node; :meth:`wait_for_nodes` waits for them."""
        for name in names:
            home = self.root / name
            (home / "plugins").mkdir(parents=True)
            write_yaml(home / "cards.yaml", self._cards(len(self.nodes)))
            self.nodes.append(name)
            self.start(f"kubelet-{name}")
            self.start(f"agent-{name}")

    def wait_for_nodes(self) -> None:
        """Wait until every node publishes its cards, and the webhook is ready.

        Raises:
            ProcessDied: it takes too long, or a process died.
        """
        self.wait("webhook", self.ready_check("webhook"))
        self.wait("nodes", self.ready)

    def enable_extender(self) -> None:
        """Restart the scheduler with the scheduler extender and our shipped configuration."""
        self.start("extender")
        self.wait("extender", self.ready_check("extender"))
        (configuration,) = read_manifests(SHIPPED)
        (entry,) = configuration["extenders"]
        entry["urlPrefix"] = f"https://127.0.0.1:{self._ports['extender']}"
        entry["tlsConfig"] = {"serverName": "localhost", "caFile": "certs/ca.crt"}
        entry["managedResources"] = [{"name": NAMES.core}]
        write_yaml(self.root / "kube-scheduler.yaml", configuration)
        self.kill("scheduler")
        self.start("scheduler", "--config=kube-scheduler.yaml")

    def inventories(self) -> dict[str, PublishedInventory]:
        """Read the inventories that the nodes publish, by node."""
        return {
            each["metadata"]["name"]: decode_inventory(annotations(each)[NAMES.gpu_cards])
            for each in self.api.list("/api/v1/nodes")["items"]
        }

    def ready_check(self, name: str) -> Callable[[], bool]:
        """Return a function that checks if ``apiserver``, ``webhook`` or ``extender`` is ready."""
        secure = name != "apiserver"
        port = self._ports[name]
        url = f"http{'s' if secure else ''}://127.0.0.1:{port}/{'readyz' if secure else 'healthz'}"
        context = ssl.create_default_context(cafile=self.root / "certs" / "ca.crt")

        return lambda: self.reaches(url, context if secure else None)

    @staticmethod
    def reaches(url: str, context: ssl.SSLContext | None = None) -> bool:
        """Return whether a GET of *url*, on this machine, returns 200."""
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as response:  # noqa: S310 -- loopback
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _command(self, name: str) -> list[str]:
        program, _, node = name.partition("-")
        server, ports = self.api.server, self._ports
        secure = "--host 127.0.0.1 --cert certs/tls.crt --key certs/tls.key"
        seed = f"--seed {self._seed}"
        home = self.root / node
        of_node = (
            f"--node-name {node} --plugin-dir {home}/plugins "
            f"--pod-resources-socket {home}/podres.sock"
        )
        commands = {
            "apiserver": f"simulator apiserver --port {ports['apiserver']} {seed} "
            "--manifests webhooks.yaml --kubeconfig kubeconfig",
            "scheduler": f"simulator scheduler --server {server} {seed}",
            # A single replica needs no Lease.
            "extender": f"scheduler --port {ports['extender']} {secure} "
            "--kubeconfig kubeconfig --lease=",
            "webhook": f"webhook --port {ports['webhook']} {secure}",
            "view": "view serve --kubeconfig kubeconfig",
            "kubelet": f"simulator kubelet --server {server} {seed} {of_node} "
            f"--root-dir {home}/kubelet --trace {home}/trace.jsonl",
            "agent": f"agent --kubeconfig kubeconfig {of_node} --cards {home}/cards.yaml "
            f"--kubelet-dir {home}/plugins --state-dir {home}/state "
            f"--cri-socket {home}/cri.sock --http-host 127.0.0.1 --http-port 0",
        }
        return [*commands[program].split(), *self._options.get(program, ())]

    def _tail(self, name: str) -> str:
        return self.log(name).read_text(encoding="utf-8", errors="replace")[-2000:]


def _is_published(node: Json) -> bool:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    has_devices = all(allocatable.get(each, "0") != "0" for each in (NAMES.core, NAMES.memory))
    return has_devices and NAMES.gpu_cards in annotations(node)


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delay signals while a process starts: otherwise an unregistered process could be left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {
        each: signal.signal(each, lambda number, _: received.append(number)) for each in signals
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if received:
        signal.raise_signal(received[0])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; other lines are left out."""
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
    """Return a free port; another program may take it before it is used."""
    with reserve_port() as probe:
        port: int = probe.getsockname()[1]
        return port


def reserve_port() -> socket.socket:
    """Bind a free port; until the socket is closed, no program gets that port as any free one.

    A program can still listen on it by its number, because both set ``SO_REUSEADDR`` and this
    socket does not listen.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
