"""A GPU node: API server and kubelet simulated, our agent and the container runtime real.

The simulated kubelet calls the agent's sockets as a real one does, and remembers what was
answered; the container that it believes to run is started here through the CRI.
"""

import json
import os
import secrets
import stat
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from agent.app.agent import Agent
from agent.settings import Settings
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import HookPoint
from simulator.kubelet.settings import Settings as KubeletSettings
from tests.agent.fakes import (
    DEADLINE_S,
    NAMES,
    eventually,
    make_manifest,
    make_settings,
    short_dir,
)
from tests.runtime.containerd import Runtime
from tests.runtime.pods import Inside, Pod

PODS = "/api/v1/namespaces/default/pods"

# For local and experimental use: no driver ever has this major number, so opening such a
# node says ENXIO where it is allowed, and EPERM where it is not.
_MAJOR = 60


@contextmanager
def card_devices(count: int) -> Iterator[list[str]]:
    prefix = f"/dev/gpu-turnstile-{secrets.token_hex(4)}-"
    paths = [f"{prefix}{index}" for index in range(count)]
    try:
        for index, path in enumerate(paths):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, index))
        yield paths
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)


def bus_id(index: int) -> str:
    """Where on the PCI bus the cards are said to be, as vcuda-controller writes it."""
    return f"0000:{index + 1:02X}:00.0"


class GpuNode:
    """A node with cards ``GPU-0``, ... of 8 GiB, and the pods of one test."""

    def __init__(self, runtime: Runtime, devices: list[str], **settings: Any) -> None:
        self.devices = devices
        self._runtime = runtime
        self._changes = settings
        self._stack = ExitStack()
        self._pods: dict[str, Pod] = {}
        self._starts: dict[tuple[str, str], int] = {}
        self._held_back = ""
        self._go_on = threading.Event()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = stack.enter_context(short_dir())
            self._hand = self.folder / "h"
            self._hand.mkdir()
            server = stack.enter_context(ApiServer())
            self.api = stack.enter_context(ApiClient(server.url))
            kubeconfig = self.folder / "kubeconfig"
            kubeconfig.write_text(kubeconfig_for(server.url))
            self._kubelet = Kubelet(
                KubeletSettings(
                    node_name="n1",
                    root_dir=self.folder / "k",
                    plugin_dir=self.folder / "p",
                    pod_resources_socket=self.folder / "r.sock",
                    plugin_wait_s=10.0,
                    start_retry_s=0.05,
                    hook=self._before,
                ),
                self.api,
            )
            self._kubelet.start()
            stack.callback(self._kubelet.stop)
            agent = Agent(replace(self._settings(kubeconfig), **self._changes))
            stack.callback(agent.stop)
            stack.callback(self._remove_pods)
            agent.start()
            eventually(lambda: agent.registered, "the agent has registered")
            whole = {NAMES.core: 100 * len(self.devices), NAMES.memory: 32 * len(self.devices)}
            eventually(lambda: self._kubelet.capacity()[1] == whole, "the kubelet has the cards")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def admit(self, name: str, request: tuple[int, int]) -> str:
        """Create a pod, and wait until the kubelet has started all of it; return its UID."""
        uid = self.create(name, request)
        self.wait_for_start(uid, "c0")
        return uid

    def create(
        self, name: str, request: tuple[int, int], *, init: tuple[int, int] | None = None
    ) -> str:
        """Create a pod of ``c0`` and perhaps ``init``, by cores and blocks; return its UID."""
        manifest = make_manifest(name, *([request, init] if init else [request]))
        containers = manifest["spec"]["containers"]
        for each in containers:
            limits = each["resources"]["limits"]
            each["resources"]["limits"] = {key: limits[key] for key in limits if limits[key] != "0"}
        if init:
            manifest["spec"]["initContainers"] = [containers.pop() | {"name": "init"}]
        return str(self.api.create(PODS, manifest)["metadata"]["uid"])

    @contextmanager
    def holding_back(self, container: str) -> Iterator[None]:
        self._held_back = container
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()

    def _before(self, moment: HookPoint) -> None:
        if (moment.what, moment.container) == ("PreStartContainer", self._held_back):
            assert self._go_on.wait(DEADLINE_S)

    def run(self, name: str, cores: int, memory: int) -> Inside:
        return self.start(name, self.admit(name, (cores, memory)))

    def run_without_cards(self, name: str, *, volumes: Mapping[str, Path] | None = None) -> Inside:
        """Start a container of a pod that requests no card; no device plugin is called."""
        uid = str(uuid.uuid4())
        pod = self._pods[uid] = Pod(self._runtime, name, uid, self._hand)
        return pod.start("c0", {}, volumes=volumes)

    def start(
        self,
        name: str,
        uid: str,
        container: str = "c0",
        *,
        volumes: Mapping[str, Path] | None = None,
    ) -> Inside:
        """Start a container of an admitted pod with what the kubelet was answered for it."""
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = Pod(self._runtime, name, uid, self._hand)
        attempt = self._starts[uid, container] - 1
        return pod.start(container, self.received(uid, container), attempt=attempt, volumes=volumes)

    def wait_for_start(self, uid: str, container: str) -> None:
        """Wait until the kubelet starts a container once more."""
        wanted = self._starts.get((uid, container), 0) + 1

        def started() -> bool:
            starts = [
                each
                for each in self._kubelet.trace.events
                if (each.event, each.pod_uid, each.container) == ("start", uid, container)
            ]
            return len(starts) == wanted

        eventually(started, f"{container} of {uid} starts")
        self._starts[uid, container] = wanted

    def restart(self, name: str, uid: str, inside: Inside, container: str = "c0") -> Inside:
        inside.stop()
        self._kubelet.restart_container("default", name, container)
        self.wait_for_start(uid, container)
        return self.start(name, uid, container)

    def received(self, uid: str, container: str = "c0") -> Mapping[str, Any]:
        """What the kubelet was answered for a container, of both resources together."""
        received = self._kubelet.received(uid, container)
        assert received["conflicts"] == []
        return received

    def delete(self, name: str, uid: str) -> None:
        """Delete a pod; its containers linger on the runtime until the test ends."""
        self.api.delete(f"{PODS}/{name}", uid=uid)
        eventually(
            lambda: uid not in {each.pod_uid for each in self._kubelet.held_devices()},
            "it has ended",
        )

    def tickets(self, uid: str, container: str = "c0") -> list[str]:
        """Return the core slots that a container holds, by the kubelet's state."""
        return sorted(
            device_id
            for each in self._kubelet.held_devices()
            if (each.pod_uid, each.container, each.resource) == (uid, container, NAMES.core)
            for device_id in each.ids
        )

    def _settings(self, kubeconfig: Path) -> Settings:
        listed = [
            {
                "uuid": f"GPU-{index}",
                "index": index,
                "model": "Fake",
                "memory": "8Gi",
                "busId": bus_id(index),
                "device": path,
            }
            for index, path in enumerate(self.devices)
        ]
        cards = self.folder / "cards.yaml"
        cards.write_text(json.dumps({"cards": listed}))
        return make_settings(
            self.folder,
            kubeconfig=kubeconfig,
            cards=cards,
            state_dir=self.folder / "s",
            cri_socket=self._runtime.socket,
            cdi_dir=self._runtime.cdi_folder,
        )

    def _remove_pods(self) -> None:
        for pod in self._pods.values():
            pod.remove()
