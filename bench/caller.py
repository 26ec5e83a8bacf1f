"""The kubelet's side of the node path: messages made beforehand, ``List`` and the checkpoint.

Nothing here decides or checks: what is timed should be the plugin, so requests are
serialized before the clock starts, answers are left unparsed where nobody needs them, and
``List`` is served from bytes that are kept ready. The checkpoint is what a kubelet writes, its
checksum included.
"""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType

import grpc

from agent.allocator.model.pod_view import PodView
from bench.load import Load
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import podresources_pb2
from contract.names import Names
from contract.resource import Resource
from simulator.kubelet.answers import Answer
from simulator.kubelet.checkpoint import Checkpoint, CheckpointFile
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.numa import NO_NODE, Holding

_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)
_START_S = 30.0
_GIVEN = {
    Resource.CORE: Answer({"NVIDIA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"}),
    Resource.MEMORY: Answer(),
}


class PluginFailed(Exception):
    """A plugin's process did not come up; the message ends with its log."""


class KubeletRecord:
    """Serves ``List`` and writes the checkpoint; an entry is serialized once, when it changes."""

    def __init__(
        self, socket: Path, plugins: Path, load: Load, names: Names, uids: Mapping[str, str]
    ) -> None:
        """Show the pods of *load* that live already.

        Args:
            socket: where ``List`` is served.
            plugins: the folder of the checkpoint.
            load: what is on the node.
            names: of the resources.
            uids: the UIDs of pods by name, where the API has given them others.
        """
        self._names = {Resource.CORE: names.core, Resource.MEMORY: names.memory}
        self._uids = uids
        self._entries: dict[str, bytes] = {}
        self._answer = b""
        self._file = CheckpointFile(plugins)
        self._written: dict[str, PodHoldings] = {}
        table = load.table()
        self._registered = {
            name: tuple(table.tickets(resource)) for resource, name in self._names.items()
        }
        self.asked = 0
        for view, held in load.held():
            self._enter(view, held)
        self._write()
        handler = grpc.method_handlers_generic_handler(
            "v1.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(self._list)}
        )
        self._server = grpc.server(ThreadPoolExecutor(4), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def show(self, view: PodView, held: Mapping[Resource, Sequence[str]]) -> None:
        """Show what a pod's container holds; the file has it once it has everything (K28)."""
        self._enter(view, held)
        if len(held) == len(Resource):
            self._write()

    def _enter(self, view: PodView, held: Mapping[Resource, Sequence[str]]) -> None:
        """Record it in both, one entry a device in ``List`` (K16)."""
        entry = podresources_pb2.PodResources(
            name=view.id.name,
            namespace=view.id.namespace,
            containers=[
                podresources_pb2.ContainerResources(
                    name="main",
                    devices=[
                        podresources_pb2.ContainerDevices(
                            resource_name=self._names[resource], device_ids=[device_id]
                        )
                        for resource, ids in held.items()
                        for device_id in ids
                    ],
                )
            ],
        )
        # Messages that follow each other merge: the answer is the entries, joined.
        answer = podresources_pb2.ListPodResourcesResponse(pod_resources=[entry])
        self._entries[view.id.uid] = answer.SerializeToString()
        self._answer = b"".join(self._entries.values())
        self._written[self._uids.get(view.id.name, view.id.uid)] = {
            "main": {
                self._names[resource]: Holding(tuple(ids), _GIVEN[resource], {NO_NODE: tuple(ids)})
                for resource, ids in held.items()
            }
        }

    def _write(self) -> None:
        self._file.save(Checkpoint(self._written, self._registered))

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop(0).wait(5)

    @property
    def size(self) -> int:
        """How many bytes an answer has."""
        return len(self._answer)

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: ARG002 -- gRPC's
        self.asked += 1
        return self._answer


class Plugin:
    """One plugin's process, and its two channels."""

    def __init__(self, name: str, load: Load, folder: Path) -> None:
        """Start it and wait until it serves.

        Raises:
            PluginFailed: it does not.
        """
        self.name = name
        self._log = folder / f"{name}.log"
        self._free = {resource: shuffled(load.table().tickets(resource)) for resource in Resource}
        command = (
            f"-m bench.plugins --plugin {name} --cards {load.cards} --live {load.live} "
            f"--arriving {load.arriving} --folder {folder}"
        )
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, *command.split()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[1],
                text=True,
            )
        if self._read() != "serving":
            self.process.kill()
            self.process.wait()
            raise PluginFailed(f"{name}: {self._log.read_text(encoding='utf-8')[-2000:]}")
        self._channels = {
            resource: grpc.insecure_channel(
                f"unix:{folder / f'{name}-{resource.value}.sock'}", options=_OPTIONS
            )
            for resource in Resource
        }
        for channel in self._channels.values():
            grpc.channel_ready_future(channel).result(timeout=_START_S)

    def take(self, resource: Resource, ids: Sequence[str]) -> None:
        """Record that the kubelet has given places away."""
        gone = set(ids)
        self._free[resource] = [each for each in self._free[resource] if each not in gone]

    def prefer(self, resource: Resource, size: int) -> tuple[float, tuple[str, ...]]:
        """Ask for a preference; give seconds and IDs."""
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=self._free[resource], allocation_size=size
                )
            ]
        )
        took, answer = self._call(resource, "GetPreferredAllocation", request.SerializeToString())
        parsed = api.PreferredAllocationResponse.FromString(answer)
        return took, tuple(parsed.container_responses[0].deviceIDs)

    def allocate(self, resource: Resource, ids: Sequence[str]) -> float:
        """Allocate; give seconds."""
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        return self._call(resource, "Allocate", request.SerializeToString())[0]

    def prestart(self, resource: Resource, ids: Sequence[str]) -> float:
        """Start a container; give seconds."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        return self._call(resource, "PreStartContainer", request.SerializeToString())[0]

    def stop(self) -> tuple[int, float]:
        """End it; return how often it would have read from the API, and the CPU seconds it took."""
        for channel in self._channels.values():
            channel.close()
        answer, _ = self.process.communicate("", timeout=_START_S)
        self.process.wait(_START_S)
        reads, cpu = answer.split()
        return int(reads), float(cpu)

    def _call(self, resource: Resource, method: str, request: bytes) -> tuple[float, bytes]:
        call = self._channels[resource].unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=None, response_deserializer=None
        )
        began = time.perf_counter()
        answer: bytes = call(request, timeout=_START_S)
        return time.perf_counter() - began, answer

    def _read(self) -> str:
        return self.process.stdout.readline().strip() if self.process.stdout else ""


def shuffled(ids: Iterable[str]) -> list[str]:
    """Bring IDs into an order as good as any: the kubelet sends those of a Go set, not sorted."""
    mixed = sorted(ids)
    Random(1).shuffle(mixed)  # noqa: S311 -- an order is to be repeatable
    return mixed


@contextmanager
def serving(
    load: Load, folder: Path, names: Names, uids: Mapping[str, str] = MappingProxyType({})
) -> Iterator[KubeletRecord]:
    """Serve the record of a loaded node, from *folder* and the plugins' folder in it."""
    plugins = folder / "plugins"
    plugins.mkdir()
    record = KubeletRecord(folder / "r.sock", plugins, load, names, uids)
    try:
        yield record
    finally:
        record.stop()
