"""Test data and fakes for the agent's adapters, one fake for each Protocol."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.allocator.allocator import Allocator
from agent.allocator.slots import DeviceTable
from agent.holdings.edits import ContainerEdits
from agent.settings import Settings
from contract.inventory import Inventory
from contract.names import Names
from contract.resource import Resource
from tests.agent.builders import BLOCK, CORE, MEMORY
from tests.agent.builders import card as make_card

NAMES = Names()
RESOURCES = {NAMES.core: CORE, NAMES.memory: MEMORY}
MIB = 1 << 20
DEADLINE_S = 120.0


def eventually(holds: Callable[[], Any], what: str, within: float = DEADLINE_S) -> Any:
    """Wait until *holds* returns a true value, and return it.

    If it does not in *within* seconds, fail with *what*.
    """
    end, pause = time.monotonic() + within, 0.002
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.03)
    return found


@contextmanager
def short_dir() -> Iterator[Path]:
    """A folder with a short path: a unix socket's path may have only 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="gt-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


def make_table(cards: int = 2, *, blocks: int = 32) -> DeviceTable:
    """Return cards ``GPU-0`` to ``GPU-<cards - 1>`` of *blocks* blocks each, on two NUMA nodes."""
    made = (replace(make_card(n, blocks=blocks), numa=n if n < 2 else None) for n in range(cards))
    return DeviceTable(Inventory(tuple(made)), BLOCK)


def make_settings(folder: Path, **changes: Any) -> Settings:
    """Return settings of an agent on node ``n1`` that listens on any free port."""
    given: dict[str, Any] = {
        "node_name": "n1",
        "kubelet_dir": folder / "p",
        "plugin_dir": folder / "p",
        "pod_resources_socket": folder / "r.sock",
        "memory_block": BLOCK,
        "names": NAMES,
        "http_host": "127.0.0.1",
        "http_port": 0,
    }
    return Settings(**given | changes)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeCalls(Allocator):
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.edits = ContainerEdits(
            {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}, ("/dev/nvidia0", "/dev/null")
        )
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def _log_call(self, call: str, ids: Sequence[str]) -> None:
        self.asked.append((call, tuple(ids)))
        if self.error is not None:
            raise self.error

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        self._log_call("prefer", available)
        return list(available)[:size]

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        self._log_call("allocate", device_ids)
        return self.edits

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        self._log_call("prestart", device_ids)


def make_manifest(
    name: str,
    *limits: tuple[int, int],
    node: str = "n1",
    annotations: Mapping[str, str] | None = None,
    uid: str = "",
) -> dict[str, Any]:
    """Return a pod's manifest in the API, with a container ``c<i>`` for each (cores, memory)."""
    containers = [
        {
            "name": f"c{index}",
            "image": "none",
            "resources": {"limits": {NAMES.core: str(cores), NAMES.memory: str(memory)}},
        }
        for index, (cores, memory) in enumerate(limits)
    ] or [{"name": "c0", "image": "none"}]
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if uid:
        metadata |= {"uid": uid, "resourceVersion": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"annotations": dict(annotations or {})},
        "spec": {"nodeName": node, "containers": containers},
    }


def write_cards(path: Path, cards: int = 2, memory: str = "8Gi") -> Path:
    """Write a cards file whose device nodes exist on any host."""
    listed = [
        {
            "uuid": f"GPU-{index}",
            "index": index,
            "model": "Fake",
            "memory": memory,
            "device": "/dev/null",
        }
        for index in range(cards)
    ]
    path.write_text(json.dumps({"cards": listed}))
    return path
