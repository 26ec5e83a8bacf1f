"""A small device plugin and pods, for the tests of the kubelet."""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from common.grpc_services import add_service, make_stub
from common.kubelet_api import deviceplugin_pb2 as pb
from common.kubelet_api import podresources_pb2 as lister_pb
from simulator.client import Json
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings
from tests.agent.fakes import DEADLINE_S, eventually, short_dir

CORE, MEMORY = "example.com/core", "example.com/memory"


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until *condition* is truthy, and return its result."""
    return eventually(condition, what or str(condition))


def channel_to(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(f"unix://{socket}", (("grpc.use_local_subchannel_pool", 1),))


@dataclass(frozen=True)
class Call:
    """One call of a plugin."""

    rpc: str
    ids: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    size: int = 0


# ruff: noqa: N802 - the protocol's names
class FakePlugin:
    """Prefers the first IDs in order, records calls, and runs a test's functions."""

    def __init__(
        self,
        directory: Path,
        resource: str,
        count: int = 20,
        *,
        preferred: bool = True,
        pre_start: bool = True,
        numa: Callable[[int], tuple[int, ...]] = lambda index: (),
    ) -> None:
        self.directory, self.resource = directory, resource
        self.ids = [f"{resource.rpartition('/')[2]}-{index:05}" for index in range(count)]
        self.numa = numa
        self.options = pb.DevicePluginOptions(
            pre_start_required=pre_start, get_preferred_allocation_available=preferred
        )
        self.endpoint = resource.replace("/", "_") + ".sock"
        self.calls: list[Call] = []
        self.on_prefer: Callable[[Call], list[str]] = self._first
        self.on_allocate: Callable[[Call], object] = lambda call: None
        self.on_pre_start: Callable[[Call], object] = lambda call: None
        self._server: grpc.Server | None = None

    def serve(self) -> "FakePlugin":
        self._server = grpc.server(ThreadPoolExecutor(8))
        add_service(self._server, pb.DESCRIPTOR, "DevicePlugin", self)
        self._server.add_insecure_port(f"unix://{self.directory / self.endpoint}")
        self._server.start()
        return self

    def register(self) -> None:
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=self.endpoint, resource_name=self.resource
        )
        with channel_to(self.directory / "kubelet.sock") as channel:
            stub = make_stub(channel, pb.DESCRIPTOR, "Registration")
            stub.Register(request, timeout=DEADLINE_S)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace=None).wait(DEADLINE_S)
            self._server = None

    def of(self, rpc: str) -> list[Call]:
        return [call for call in self.calls if call.rpc == rpc]

    def _first(self, call: Call) -> list[str]:
        rest = sorted(set(call.available) - set(call.must_include))
        return [*call.must_include, *rest][: call.size]

    def _list(self) -> pb.ListAndWatchResponse:
        nodes = [[pb.NUMANode(ID=each) for each in self.numa(at)] for at in range(len(self.ids))]
        return pb.ListAndWatchResponse(
            devices=[
                pb.Device(ID=id_, health="Healthy", topology=pb.TopologyInfo(nodes=near))
                for id_, near in zip(self.ids, nodes, strict=True)
            ]
        )

    def GetDevicePluginOptions(self, request: Any, context: Any) -> pb.DevicePluginOptions:
        return self.options

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[pb.ListAndWatchResponse]:
        ended = threading.Event()
        context.add_callback(ended.set)
        yield self._list()
        ended.wait()

    def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        [requested] = request.container_requests
        offered, must = requested.available_deviceIDs, requested.must_include_deviceIDs
        size = requested.allocation_size
        call = Call("GetPreferredAllocation", (), tuple(offered), tuple(must), size)
        preferred = self._handle(call, self.on_prefer, context)
        response = pb.ContainerPreferredAllocationResponse(deviceIDs=preferred)
        return pb.PreferredAllocationResponse(container_responses=[response])

    def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:
        [requested] = request.container_requests
        call = Call("Allocate", tuple(requested.devices_ids), size=len(requested.devices_ids))
        self._handle(call, self.on_allocate, context)
        variable = self.resource.rpartition("/")[2].upper()
        response = pb.ContainerAllocateResponse(envs={variable: ",".join(sorted(call.ids))})
        return pb.AllocateResponse(container_responses=[response])

    def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        call = Call("PreStartContainer", tuple(request.devices_ids))
        self._handle(call, self.on_pre_start, context)
        return pb.PreStartContainerResponse()

    def _handle(self, call: Call, do: Callable[[Call], Any], context: Any) -> Any:
        self.calls.append(call)
        try:
            return do(call)
        except Refuse as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


class Refuse(Exception):
    """A plugin's refusal."""


def refuse(text: str) -> None:
    raise Refuse(text)


_uids = itertools.count(1)


def container(name: str, core: int = 0, memory: int = 0, *, restart: str = "") -> Json:
    limits = {r: str(n) for r, n in ((CORE, core), (MEMORY, memory)) if n}
    obj: Json = {"name": name, "resources": {"limits": limits}}
    if restart:
        obj["restartPolicy"] = restart
    return obj


def pod(
    name: str,
    *containers: Json,
    init: tuple[Json, ...] = (),
    created: str = "2026-01-01T00:00:00Z",
    **spec: Any,
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}-{next(_uids)}",
            "creationTimestamp": created,
        },
        "spec": {"initContainers": list(init), "containers": list(containers), **spec},
        "status": {"phase": "Pending"},
    }


class Node:
    """A kubelet on a temporary directory, with plugins."""

    def __init__(self, directory: Path, **knobs: Any) -> None:
        self.lister_socket = directory / "pr.sock"
        options: dict[str, Any] = {
            "pod_resources_socket": self.lister_socket,
            "start_retry_s": 0.05,
            "grace_s": (0.0, 0.01),
            "init_run_s": (0.0, 0.01),
            **knobs,
        }
        self.settings = Settings(
            node_name="n1", root_dir=directory / "root", plugin_dir=directory / "dp", **options
        )
        self.kubelet = Kubelet(self.settings)
        self.plugins: dict[str, FakePlugin] = {}

    def plug(self, resource: str = CORE, count: int = 20, **options: Any) -> FakePlugin:
        plugin = FakePlugin(self.settings.plugin_dir, resource, count, **options).serve()
        self.plugins[resource] = plugin
        plugin.register()
        self.wait_healthy(resource, count)
        return plugin

    def replug(self, resource: str = CORE) -> None:
        plugin = self.plugins[resource]
        plugin.stop()
        plugin.serve().register()
        self.wait_healthy(resource, len(plugin.ids))

    def wait_healthy(self, resource: str, count: int) -> None:
        wait_for(lambda: self.kubelet.capacity()[1].get(resource) == count, what=resource)

    def admit(self, *pods: Json) -> None:
        self.kubelet.add_pods(*pods)
        self.wait_idle()

    def wait_idle(self) -> None:
        wait_for(self.kubelet.idle, what="admission")

    def wait_running(self, *pods: Json) -> None:
        wait_for(lambda: all(self.phase(each) == "Running" for each in pods), what="Running")

    def phase(self, obj: Json) -> str:
        return str((self.kubelet.status(obj["metadata"]["uid"]) or {}).get("phase"))

    def message(self, obj: Json) -> tuple[str, str]:
        status = self.kubelet.status(obj["metadata"]["uid"]) or {}
        return str(status.get("reason", "")), str(status.get("message", ""))

    def held(self, obj: Json, name: str, resource: str = CORE) -> tuple[str, ...]:
        return next(
            (
                tuple(sorted(each.ids))
                for each in self.kubelet.held_devices()
                if (each.pod_uid, each.container, each.resource)
                == (obj["metadata"]["uid"], name, resource)
            ),
            (),
        )

    def list(self) -> dict[str, dict[str, Counter[str]]]:
        """Call ``List``: pod -> container -> resource -> number of device IDs."""
        return {
            each.name: {
                one.name: Counter(d.resource_name for d in one.devices for _ in d.device_ids)
                for one in each.containers
            }
            for each in self.list_raw().pod_resources
        }

    def list_raw(self) -> lister_pb.ListPodResourcesResponse:
        with channel_to(self.lister_socket) as channel:
            stub = make_stub(channel, lister_pb.DESCRIPTOR, "PodResourcesLister")
            response: lister_pb.ListPodResourcesResponse = stub.List(
                lister_pb.ListPodResourcesRequest(), timeout=DEADLINE_S
            )
            return response

    def close(self) -> None:
        self.kubelet.stop()
        for plugin in self.plugins.values():
            plugin.stop()


@contextlib.contextmanager
def node(**knobs: Any) -> Iterator[Node]:
    with short_dir() as folder:
        built = Node(folder, **knobs)
        try:
            built.kubelet.start()
            yield built
        finally:
            built.close()
