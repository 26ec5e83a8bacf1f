"""Timed calls to a plugin, and the simulated kubelet's sockets around it.

Registration, ``List`` and checkpoint file are the simulator's; a load defines the containers and
the devices that they hold. Only the plugin's work is timed: requests are serialized before the
clock starts, responses are parsed after it has stopped.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Self

import grpc

from bench.load import Load
from bench.process import WITHIN_S
from common.kubelet_api import deviceplugin_pb2 as api
from contract.names import Names
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.kubelet.checkpoint import CheckpointStore
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.numa import NO_NODE, DeviceAllocation
from simulator.kubelet.podresources import PodResourcesServer
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
_RESPONSES = {
    Resource.CORE: PluginResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"}
    ),
    Resource.MEMORY: PluginResponse(),
}


class MeasuringKubelet:
    """Serves ``List``, without a limit, and writes the checkpoint."""

    def __init__(self, load: Load, folder: Path, names: Names) -> None:
        """Serve the live pods of *load*.

        Args:
            load: the load.
            folder: gets the socket and the plugins' folder, which has the checkpoint.
            names: the names of the resources.
        """
        (folder / "plugins").mkdir()
        self._names = {Resource.CORE: names.core, Resource.MEMORY: names.memory}
        self._listed: dict[str, tuple[Pod, PodHoldings]] = {}
        self._file = CheckpointStore(folder / "plugins")
        table = load.table()
        self._registered = {
            name: tuple(table.slots(resource)) for resource, name in self._names.items()
        }
        self._misbehavior = Misbehavior()
        for view, held in load.held():
            self._add(view, held)
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
        """Show a pod's devices in ``List``; the file has them when none is missing (K28)."""
        self._add(view, held)
        if len(held) == len(Resource):
            self._write()

    def _add(self, view: PodInfo, held: Mapping[Resource, Sequence[str]]) -> None:
        uid = view.id.uid
        metadata = {"name": view.id.name, "namespace": view.id.namespace, "uid": uid}
        pod = parse_pod({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})
        holdings = {
            self._names[resource]: DeviceAllocation(
                tuple(ids), _RESPONSES[resource], {NO_NODE: tuple(ids)}
            )
            for resource, ids in held.items()
        }
        self._listed[uid] = pod, {"main": holdings}

    def _write(self) -> None:
        pods = {uid: holdings for uid, (_, holdings) in self._listed.items()}
        self._file.save(KubeletCheckpoint(pods, self._registered))

    @property
    def list_calls(self) -> int:
        """The number of ``List`` calls so far."""
        return len(self._misbehavior.passed)


class TimedPlugin:
    """Calls one plugin's socket; serializing and parsing is not timed."""

    def __init__(self, socket: Path) -> None:
        """Connect; the first call waits until the plugin listens."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)

    def prefer(self, available: Sequence[str], size: int) -> tuple[float, tuple[str, ...]]:
        """Call ``GetPreferredAllocation``; return seconds and device IDs."""
        container = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[container])
        took, response = self._call("GetPreferredAllocation", request.SerializeToString())
        parsed = api.PreferredAllocationResponse.FromString(response)
        return took, tuple(parsed.container_responses[0].deviceIDs)

    def allocate(self, ids: Sequence[str]) -> float:
        """Call ``Allocate``; return seconds."""
        container = api.ContainerAllocateRequest(devices_ids=ids)
        request = api.AllocateRequest(container_requests=[container])
        return self._call("Allocate", request.SerializeToString())[0]

    def prestart(self, ids: Sequence[str]) -> float:
        """Call ``PreStartContainer``; return seconds."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        return self._call("PreStartContainer", request.SerializeToString())[0]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _call(self, method: str, request: bytes) -> tuple[float, bytes]:
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=None, response_deserializer=None
        )
        began = time.perf_counter()
        response: bytes = call(request, timeout=WITHIN_S, wait_for_ready=True)
        return time.perf_counter() - began, response


def shuffled(ids: Iterable[str]) -> list[str]:
    """Shuffle device IDs: the kubelet sends them unsorted, in the order of a Go set."""
    mixed = sorted(ids)
    Random(1).shuffle(mixed)  # noqa: S311 -- an order must be repeatable
    return mixed
