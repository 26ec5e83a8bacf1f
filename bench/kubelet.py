"""The simulated kubelet's sockets around a plugin that is timed, and the calls that are timed.

Its registration, ``List`` and checkpoint file are the simulator's; which containers there are and
what they hold is what a load says. Of a call only the plugin's work is timed: requests are
serialized before the clock starts, answers are parsed after it has stopped.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Self

import grpc

from bench.load import Load
from bench.process import WITHIN_S
from common.kubelet_api import deviceplugin_pb2 as api
from contract.names import Names
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.kubelet.checkpoint import CheckpointStore
from simulator.kubelet.devices import PluginOptions, PodHoldings
from simulator.kubelet.numa import NO_NODE, Device, Holding
from simulator.kubelet.plugins import Plugins
from simulator.kubelet.podresources import PodResourcesServer, describe
from simulator.kubelet.pods import Pod, parse_pod
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.sockets import Misbehavior
from simulator.kubelet.state import KubeletCheckpoint

_UNLIMITED = 1_000_000
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_GIVEN = {
    Resource.CORE: PluginResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"}
    ),
    Resource.MEMORY: PluginResponse(),
}


class KubeletRecord:
    """Serves ``List``, without a limit, and writes the checkpoint."""

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
        self._listed: dict[str, tuple[Pod, PodHoldings]] = {}
        self._file = CheckpointStore(folder / "plugins")
        table = load.table()
        self._registered = {
            name: tuple(table.slots(resource)) for resource, name in self._names.items()
        }
        self._misbehavior = Misbehavior()
        for view, held in load.held():
            self._enter(view, held)
        self._write()
        self._server = PodResourcesServer(
            folder / "r.sock",
            lambda: list(self._listed.values()),
            rate=_UNLIMITED,
            burst=_UNLIMITED,
            misbehavior=self._misbehavior,
        )
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def show(self, view: PodInfo, held: Mapping[Resource, Sequence[str]]) -> None:
        """Show what a pod's container holds; the file has it once it has everything (K28)."""
        self._enter(view, held)
        if len(held) == len(Resource):
            self._write()

    def _enter(self, view: PodInfo, held: Mapping[Resource, Sequence[str]]) -> None:
        uid = self._uids.get(view.id.name, view.id.uid)
        metadata = {"name": view.id.name, "namespace": view.id.namespace, "uid": uid}
        pod = parse_pod({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})
        holdings = {
            self._names[resource]: Holding(tuple(ids), _GIVEN[resource], {NO_NODE: tuple(ids)})
            for resource, ids in held.items()
        }
        self._listed[uid] = pod, {"main": holdings}

    def _write(self) -> None:
        pods = {uid: holdings for uid, (_, holdings) in self._listed.items()}
        self._file.save(KubeletCheckpoint(pods, self._registered))

    @property
    def asked(self) -> int:
        """How often ``List`` was called."""
        return len(self._misbehavior.passed)

    @property
    def size(self) -> int:
        """How many bytes an answer has."""
        return sum(describe(*each).ByteSize() for each in self._listed.values())


class TimedPlugin:
    """One plugin's socket; of a call the work on its messages is not timed."""

    def __init__(self, socket: Path) -> None:
        """Dial; what is called first waits until somebody answers."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)

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


class Registry:
    """The simulated kubelet's registration, in a folder, and the lists that plugins have sent.

    Attributes:
        devices: the IDs, by resource, of the plugins that are there.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare; nothing listens yet."""
        self._misbehavior = Misbehavior()
        self._plugins = Plugins(folder, self, self._misbehavior)
        self.devices: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        self._plugins.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._plugins.stop()

    def forget(self) -> None:
        """Forget who has registered so far."""
        self._misbehavior.passed.clear()

    @property
    def registered(self) -> set[str]:
        """The resources that were registered."""
        return set(self._misbehavior.of("Register"))

    def calls(self, resource: str) -> TimedPlugin:
        """Dial the plugin of a resource whose devices have come."""
        found = self._plugins.get(resource)
        if found is None:
            raise KeyError(resource)
        return TimedPlugin(found.socket)

    def connected(self, resource: str, options: PluginOptions) -> None:
        """Have a plugin, which has sent no devices yet."""

    def advertised(self, resource: str, devices: tuple[Device, ...]) -> None:
        """Keep the devices of a plugin."""
        self.devices[resource] = [each.id for each in devices]

    def disconnected(self, resource: str) -> None:
        """Forget the devices of a plugin that has gone."""
        self.devices.pop(resource, None)


def shuffled(ids: Iterable[str]) -> list[str]:
    """Bring IDs into an order as good as any: the kubelet sends those of a Go set, not sorted."""
    mixed = sorted(ids)
    Random(1).shuffle(mixed)  # noqa: S311 -- an order is to be repeatable
    return mixed
