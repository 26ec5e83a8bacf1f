"""A node with a simulated kubelet and API server, and agents that are processes."""

import multiprocessing
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from contract.allocation import decode_allocations
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from simulator.cluster import read_lines
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings
from tests.agent.fakes import NAMES, eventually, short_dir, write_cards
from tests.handover import agent_process
from tests.situations.build import gpu

Json = dict[str, Any]
NODE = "n1"
PODS = "/api/v1/namespaces/default/pods"
_FORKS = multiprocessing.get_context("forkserver")
"""Agents are forked from a process that has imported all of it: an import takes a second."""
_FORKS.set_forkserver_preload(["__main__", "tests.handover.preloaded"])
_MOST_PROBES = 20
WITHIN_S = 60.0
STAMPS = {NAMES.gpu_assigned: "false"}


class Stage:
    """Starts and kills agents, creates pods, and says what became of them."""

    def __init__(self, folder: Path, server: ApiServer, client: ApiClient, **knobs: Any) -> None:
        self.folder = folder
        self.client = client
        (folder / "kubeconfig").write_text(kubeconfig_for(server.url))
        write_cards(folder / "cards.yaml", 4)
        self.kubelet = Kubelet(
            Settings(
                node_name=NODE,
                root_dir=folder / "root",
                plugin_dir=folder / "dp",
                pod_resources_socket=folder / "pr.sock",
                start_retry_s=0.05,
                grace_s=(0.0, 0.01),
                init_run_s=(0.0, 0.01),
                plugin_wait_s=20.0,
                list_rate=10_000.0,
                list_burst=1_000,
                **knobs,
            ),
            client,
        )
        self.agents: dict[str, BaseProcess] = {}
        self.steps: list[tuple[str, str]] = []
        self.act: Callable[[str, str], None] = lambda _agent, _step: None
        self.created: list[str] = []
        self.restarted = threading.Event()
        self.failed_ever: dict[str, str] = {}
        self._control = socket.socket(socket.AF_UNIX)
        self._control.bind(str(folder / "control"))
        self._control.listen(16)
        self._attending: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    # --- agents ---------------------------------------------------------------------------

    def launch(self, name: str) -> None:
        """Start an agent."""
        arguments = [
            *("--node-name", NODE, "--kubeconfig", str(self.folder / "kubeconfig")),
            *("--plugin-dir", str(self.folder / "dp")),
            *("--pod-resources-socket", str(self.folder / "pr.sock")),
            *("--cards", str(self.folder / "cards.yaml")),
            *("--http-host", "127.0.0.1", "--http-port", "0"),
        ]
        (self.folder / f"{name}.log").touch()
        process = _FORKS.Process(target=agent_process.main, args=(name, arguments, self.folder))
        process.start()
        self.agents[name] = process

    def log(self, name: str) -> list[Json]:
        """Read what an agent has logged."""
        return read_lines(self.folder / f"{name}.log")

    def said(self, name: str, event: str) -> bool:
        """Tell whether an agent has logged *event*."""
        return any(event in line.values() for line in self.log(name))

    def serving(self, name: str) -> None:
        """Start an agent, and wait until the kubelet offers its devices."""
        self.launch(name)
        self.await_offered()
        eventually(lambda: self.said(name, "registered"), f"{name} registers", WITHIN_S)

    def standing_by(self, name: str) -> None:
        """Start an agent beside the one that serves, and wait until it stands by."""
        self.launch(name)
        eventually(lambda: self.said(name, "standing by"), f"{name} stands by", WITHIN_S)

    def terminate(self, name: str) -> None:
        """Ask an agent to end."""
        self.agents[name].terminate()

    def kill(self, name: str) -> None:
        """Kill an agent."""
        self.agents[name].kill()

    def await_end(self, name: str) -> int:
        """Wait until an agent has ended; gives its status."""
        self.agents[name].join(WITHIN_S)
        ended = self.agents[name].exitcode
        assert ended is not None, f"{name} runs on"
        return ended

    def alive(self) -> list[str]:
        """Name the agents that run."""
        return [name for name, process in self.agents.items() if process.is_alive()]

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._control.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._attend, args=(accepted,), daemon=True)
            self._attending.append(thread)
            thread.start()

    def _attend(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("r") as lines, suppress(OSError):
            name = lines.readline().strip()
            for line in lines:
                step = line.strip()
                self.steps.append((name, step))
                self.act(name, step)
                accepted.sendall(b"go\n")

    # --- pods -----------------------------------------------------------------------------

    def create(self, name: str, *containers: Json, init: tuple[Json, ...] = ()) -> None:
        """Create a pod that is bound to the node."""
        spec: Json = {"nodeName": NODE, "containers": list(containers) or [gpu("c0", 10, 4)]}
        if init:
            spec["initContainers"] = list(init)
        self.created.append(name)
        self.client.create(PODS, {"metadata": {"name": name, "annotations": STAMPS}, "spec": spec})

    def delete(self, name: str) -> None:
        """Delete a pod."""
        self.created.remove(name)
        self.client.delete(f"{PODS}/{name}")

    def phase(self, name: str) -> str:
        """Give a pod's phase; of one that failed, why is remembered."""
        status = self.client.get(f"{PODS}/{name}").get("status", {})
        if status.get("phase") == "Failed":
            self.failed_ever[name] = status.get("message", "")
        return str(status.get("phase", ""))

    def await_running(self, *names: str) -> None:
        """Wait until pods run."""
        for name in names:
            eventually(partial(self._runs, name), f"{name} runs", WITHIN_S)

    def _runs(self, name: str) -> bool:
        return self.phase(name) == "Running"

    def await_offered(self) -> None:
        """Wait until the kubelet can give both resources."""
        eventually(
            lambda: all(
                self.kubelet.capacity()[1].get(each) for each in (NAMES.core, NAMES.memory)
            ),
            "both resources are offered",
            WITHIN_S,
        )

    def await_served(self) -> None:
        """Wait until pods run again: the kubelet may just have lost its plugin (K19)."""
        self.await_offered()
        for number in range(_MOST_PROBES):
            name = f"probe-{number}"
            self.create(name, gpu("c0", 1, 1))
            eventually(partial(self._is_over, name), f"{name} runs or has failed", WITHIN_S)
            if self._runs(name):
                return
            self.delete(name)
            self.await_offered()
        raise AssertionError(f"no pod runs: {self.failed_ever}")

    def _is_over(self, name: str) -> bool:
        return self.phase(name) in ("Running", "Failed")

    # --- truth ----------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that nothing was given twice, and that pods' records are the kubelet's."""
        held = self.kubelet.record()
        places = Counter(
            (each.resource, place)
            for each in held
            if str(each.kind) != "init"
            for place in each.ids
        )
        assert [place for place, count in places.items() if count > 1] == []
        cards: dict[tuple[str, str], set[str]] = {}
        for each in held:
            found = {place.partition("::")[0] for place in each.ids}
            cards.setdefault((each.pod, each.container), set()).update(found)
        for (pod, container), expected in cards.items():
            eventually(
                partial(self._is_recorded, pod, container, expected),
                f"the record of {pod}'s {container} says {expected}",
            )

    def _is_recorded(self, pod: str, container: str, expected: set[str]) -> bool:
        return self._recorded(pod).get(container) == expected

    def _recorded(self, pod: str) -> dict[str, set[str]]:
        annotations = self.client.get(f"{PODS}/{pod}")["metadata"].get("annotations", {})
        text = annotations.get(NAMES.gpu_allocation)
        if text is None:
            return {}
        return {name: set(each.cards) for name, each in decode_allocations(text).items()}

    def tell(self) -> None:
        """Write what helps to understand a failure."""
        lines: list[object] = [f"steps: {self.steps}"]
        for name, process in self.agents.items():
            said = [
                line
                for line in self.log(name)
                if line.get("logger") != "agent.observability.decision_log"
            ]
            lines += [f"{name}: {process.exitcode}", *said[-40:]]
        for name in self.created:
            if self.phase(name) != "Running":
                lines.append(self.client.get(f"{PODS}/{name}"))
        sys.stderr.write("\n".join(map(str, lines)))

    def close(self) -> None:
        """End everything."""
        self.act = lambda _agent, _step: None
        for process in self.agents.values():
            process.kill()
        for process in self.agents.values():
            process.join(20)
        self._control.shutdown(socket.SHUT_RDWR)
        self._accepting.join(20)
        self._control.close()
        for thread in self._attending:
            thread.join(20)
        self.kubelet.stop()


@contextmanager
def stage(**knobs: Any) -> Iterator[Stage]:
    """Set a node up; agents are for the test to launch."""
    with short_dir() as folder, ApiServer() as server, ApiClient(server.url) as client:
        made = Stage(folder, server, client, **knobs)
        made.kubelet.start()
        try:
            yield made
        except BaseException:
            made.tell()
            raise
        finally:
            made.close()
