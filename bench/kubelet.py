"""The kubelet's side of plugins: their registration and calls, ``List`` and the checkpoint.

Nothing here decides or checks: what is timed should be the plugin, so requests are
serialized before the clock starts, answers are left unparsed where nobody needs them, and
``List`` is served from bytes that are kept ready. The checkpoint is what a kubelet writes, its
checksum included.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Self

import grpc

from bench.load import Load
from bench.process import WITHIN_S
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import deviceplugin_pb2_grpc as rpc
from common.kubelet_api import podresources_pb2
from contract.names import Names
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.kubelet.answers import Answer
from simulator.kubelet.checkpoint import CheckpointFile
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.numa import NO_NODE, Holding
from simulator.kubelet.state import Checkpoint

_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_GIVEN = {
    Resource.CORE: Answer({"NVIDIA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"}),
    Resource.MEMORY: Answer(),
}


class KubeletRecord:
    """Serves ``List`` and writes the checkpoint; an entry is serialized once, when it changes."""

    def __init__(
        self,
        load: Load,
        folder: Path,
        names: Names,
        uids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Show the pods of *load* that live already; *uids* are those that the API gave them.

        The socket is in *folder*, and so is the plugins' folder, which has the checkpoint.
        """
        (folder / "plugins").mkdir()
        self._names = {Resource.CORE: names.core, Resource.MEMORY: names.memory}
        self._uids = uids
        self._entries: dict[str, bytes] = {}
        self._answer = b""
        self._file = CheckpointFile(folder / "plugins")
        self._written: dict[str, PodHoldings] = {}
        table = load.table()
        self._registered = {
            name: tuple(table.slots(resource)) for resource, name in self._names.items()
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
        self._server.add_insecure_port(f"unix:{folder / 'r.sock'}")
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(5)

    def show(self, view: PodInfo, held: Mapping[Resource, Sequence[str]]) -> None:
        """Show what a pod's container holds; the file has it once it has everything (K28)."""
        self._enter(view, held)
        if len(held) == len(Resource):
            self._write()

    def _enter(self, view: PodInfo, held: Mapping[Resource, Sequence[str]]) -> None:
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

    @property
    def size(self) -> int:
        """How many bytes an answer has."""
        return len(self._answer)

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: ARG002 -- gRPC's
        self.asked += 1
        return self._answer


class Calls:
    """One plugin's socket; of a call the work on its messages is not timed."""

    def __init__(self, socket: Path) -> None:
        """Dial; what is called first waits until somebody answers."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)

    def devices(self) -> Iterator[list[str]]:
        """Return each list of devices that the plugin sends."""
        for each in rpc.DevicePluginStub(self._channel).ListAndWatch(
            api.Empty(), wait_for_ready=True
        ):
            yield [device.ID for device in each.devices]

    def prefer(self, available: Sequence[str], size: int) -> tuple[float, tuple[str, ...]]:
        """Ask for a preference; return seconds and IDs."""
        asked = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[asked])
        took, answer = self._call("GetPreferredAllocation", request.SerializeToString())
        parsed = api.PreferredAllocationResponse.FromString(answer)
        return took, tuple(parsed.container_responses[0].deviceIDs)

    def allocate(self, ids: Sequence[str]) -> float:
        """Allocate; return seconds."""
        asked = api.ContainerAllocateRequest(devices_ids=ids)
        request = api.AllocateRequest(container_requests=[asked])
        return self._call("Allocate", request.SerializeToString())[0]

    def prestart(self, ids: Sequence[str]) -> float:
        """Start a container; return seconds."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        return self._call("PreStartContainer", request.SerializeToString())[0]

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _call(self, method: str, request: bytes) -> tuple[float, bytes]:
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=None, response_deserializer=None
        )
        began = time.perf_counter()
        answer: bytes = call(request, timeout=WITHIN_S, wait_for_ready=True)
        return time.perf_counter() - began, answer


class Kubelet(rpc.RegistrationServicer):
    """Takes registrations, and keeps the list of each plugin open.

    Attributes:
        registered: the resources whose plugins have registered.
        plugins: by resource, once the plugin has sent its devices.
        devices: the IDs, by resource.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare; nothing listens yet."""
        self._folder = folder
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._lists: list[Iterator[list[str]]] = []
        self.registered: set[str] = set()
        self.plugins: dict[str, Calls] = {}
        self.devices: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.plugins.values():
            each.close()
        self._server.stop(0).wait(5)

    def Register(  # noqa: N802 -- the protocol's name
        self,
        request: api.RegisterRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 -- gRPC's
    ) -> api.Empty:
        """Take a plugin, and watch its devices once it is answered."""
        self.registered.add(request.resource_name)
        calls = Calls(self._folder / request.endpoint)
        threading.Thread(target=self._watch, args=(request.resource_name, calls)).start()
        return api.Empty()

    def _watch(self, name: str, calls: Calls) -> None:
        lists = calls.devices()
        with suppress(grpc.RpcError):
            self.devices[name] = next(lists)
            self._lists.append(lists)  # stays open
            self.plugins[name] = calls


def shuffled(ids: Iterable[str]) -> list[str]:
    """Bring IDs into an order as good as any: the kubelet sends those of a Go set, not sorted."""
    mixed = sorted(ids)
    Random(1).shuffle(mixed)  # noqa: S311 -- an order is to be repeatable
    return mixed
