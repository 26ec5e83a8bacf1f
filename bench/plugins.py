"""The plugins of the node path, each a process: ``python -m bench.plugins NAME ...``.

``ours`` is the agent's allocator with its gRPC server, log and metrics. ``bare`` gets the same
messages and returns device IDs from the request, which is the least that a device plugin in Python
can do.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from agent.allocator.allocator import Allocator
from agent.allocator.slots import DeviceTable
from agent.app.plugin_door import CURRENT_POD_FILE
from agent.enforcement.none import NoEnforcement
from agent.holdings.edits import ContainerEdits
from agent.host import process
from agent.host.state_file import StateFile
from agent.injection.inject import Injection, inject
from agent.kubelet.checkpoint import CheckpointFile
from agent.kubelet.kubelet_instance import KubeletInstance
from agent.kubelet.podresources import PodResources
from agent.kubelet.server import DevicePluginService, PluginServer
from agent.observability.decision_log import LoggedDecisions
from agent.observability.metrics import Metrics
from bench.load import Load
from common.logs import configure
from contract.allocation import Allocation
from contract.names import Names
from contract.resource import Resource
from placement.pods import Key, PodInfo


class LoadedPods:
    """A pod source with all pods of a load; it counts the reads from the API."""

    def __init__(self, views: Sequence[PodInfo]) -> None:
        self._views = tuple(views)
        self._by_name = {view.id.key: view for view in views}
        self.reads = 0

    def pods(self) -> Sequence[PodInfo]:
        """Return all pods."""
        return self._views

    def uids_seen(self, key: Key) -> Sequence[str]:
        """Return the UIDs of the pods with this name."""
        return [self._by_name[key].id.uid]

    def is_synced(self) -> bool:
        """Return true: all pods are known."""
        return True

    def fetch(
        self,
        namespace: str,
        name: str,
        *,
        within: float = 1.0,  # noqa: ARG002 -- as the allocator has it
    ) -> PodInfo | None:
        """Return a pod at once, and count the read."""
        self.reads += 1
        return self._by_name.get((namespace, name))

    def refresh(self, *, within: float) -> None:  # noqa: ARG002 -- as the allocator has it
        """Only count the read."""
        self.reads += 1


class NoOutbox:
    """Discards writes to the API, because they are not part of the timed calls."""

    def put(self, info: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Do nothing."""


class Echo:
    """The bare plugin: it decides nothing and keeps no state."""

    def prefer(
        self,
        resource: Resource,  # noqa: ARG002 -- as the allocator has it
        available: Sequence[str],
        must: Sequence[str],  # noqa: ARG002 -- as the allocator has it
        size: int,
    ) -> list[str]:
        """Return the first device IDs."""
        return list(available[:size])

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        """Return the card's UUID, as every GPU plugin must."""
        if resource is Resource.MEMORY:
            return ContainerEdits()
        return ContainerEdits({"NVIDIA_VISIBLE_DEVICES": device_ids[0].partition("::")[0]})

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Do nothing."""


def main(plugin: str, load: Load, folder: Path) -> None:
    """Serve until standard input ends; then print the number of API reads, and CPU seconds."""
    names = Names()
    table, pods = load.table(), LoadedPods(load.views())
    configure("info")
    ours = plugin == "ours"
    calls = _allocator(table, pods, folder, names) if ours else cast(Allocator, Echo())
    servers = [
        PluginServer(
            DevicePluginService(resource=resource, table=table, calls=calls),
            folder / f"{plugin}-{resource.value}.sock",
        )
        for resource in Resource
    ]
    before = time.process_time()
    sys.stderr.write("serving\n")
    sys.stdin.read()
    sys.stderr.write(f"served {pods.reads} {time.process_time() - before}\n")
    for server in servers:
        server.stop()


def _allocator(table: DeviceTable, pods: LoadedPods, folder: Path, names: Names) -> Allocator:
    inventory = table.inventory
    resources = {names.core: Resource.CORE, names.memory: Resource.MEMORY}
    plugins = folder / "plugins"
    allocator = Allocator(
        table=table,
        pods=pods,
        pod_resources=PodResources(folder / "r.sock", resources=resources),
        checkpoint=CheckpointFile(plugins, resources),
        store=StateFile(folder / CURRENT_POD_FILE),
        kubelet=KubeletInstance(plugins).current,
        writer=NoOutbox(),
        decision_log=LoggedDecisions(Metrics()),
        inject=lambda holding: inject(holding, inventory, Injection.ENVVAR),
        enforcer=NoEnforcement(),
    )
    allocator.refresh()
    process.freeze()
    return allocator


if __name__ == "__main__":
    name, cards, live, arriving, where = sys.argv[1:]
    main(name, Load(int(cards), int(live), int(arriving)), Path(where))
