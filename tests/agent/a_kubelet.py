"""The simulated kubelet beside an agent: it gets its pods by hand."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from simulator.client import ApiClient
from simulator.kubelet.errors import PluginCallFailed, TurnedAway
from simulator.kubelet.node import Kubelet
from simulator.kubelet.plugins import PluginClient
from simulator.kubelet.settings import Settings
from tests.agent.app.whole import PODS
from tests.agent.fakes import NAMES, eventually


def make_kubelet(folder: Path, api: ApiClient | None = None, **more: Any) -> Kubelet:
    """Make the kubelet of node ``n1``, whose sockets are in *folder*; it is not started."""
    (folder / "plugins").mkdir(exist_ok=True)
    given: dict[str, Any] = {
        "node_name": "n1",
        "root_dir": folder / "k",
        "plugin_dir": folder / "plugins",
        "pod_resources_socket": folder / "pr.sock",
    }
    return Kubelet(Settings(**given | more), api)


def registered(kubelet: Kubelet) -> list[str]:
    return kubelet.settings.misbehavior.of("Register")


def client_of(kubelet: Kubelet, resource: str) -> PluginClient:
    found = kubelet.instance.manager.plugins.get(resource)
    assert found is not None
    return found


def has_devices(kubelet: Kubelet) -> bool:
    """Whether the kubelet has healthy devices of both resources: it is registered before."""
    allocatable = kubelet.capacity()[1]
    return all(allocatable.get(each) for each in NAMES.resources)


def responds(kubelet: Kubelet, resource: str) -> bool:
    """Whether a plugin of a resource is registered, and responds."""
    found = kubelet.instance.manager.plugins.get(resource)
    with suppress(PluginCallFailed):  # a broken stream may drop it at any moment (K18)
        return found is not None and bool(found.connect())
    return False


def serve(kubelet: Kubelet, admin: ApiClient, name: str) -> list[str]:
    """Run a pod of the API server; return the device nodes of its container ``c0``."""
    pod = admin.get(f"{PODS}/{name}")
    eventually(lambda: has_devices(kubelet), "the kubelet has lists of devices")
    kubelet.add_pods(pod)
    found = eventually(lambda: kubelet.received(pod["metadata"]["uid"], "c0"), f"{name} starts")
    return [each["host_path"] for each in found["devices"]]


class TurnsAway:
    def __init__(self, error: TurnedAway, times: int = 1_000_000) -> None:
        self.asked = 0
        self._error = error
        self._times = times

    def __call__(self, _resource: str) -> None:
        self.asked += 1
        if self.asked <= self._times:
            raise self._error
