"""What the agent's adapters meet: a kubelet on sockets, and an API server that follows a script."""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import grpc

from agent.allocator.grants import (
    ContainerEdits,
)
from agent.allocator.slots import DeviceTable
from agent.kubelet.checkpoint import FILE_NAME as CHECKPOINT
from agent.settings import Settings
from common.kubelet_api import deviceplugin_pb2 as pb
from common.kubelet_api import deviceplugin_pb2_grpc as rpc
from common.kubelet_api import podresources_pb2 as lister_pb
from common.kubelet_api import podresources_pb2_grpc as lister_grpc
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
    """Wait until *holds*, and give what it gave; fail with *what* when it does not in time."""
    end, pause = time.monotonic() + within, 0.002
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.03)
    return found


@contextmanager
def short_dir() -> Iterator[Path]:
    """A folder whose sockets stay below the 108 bytes a unix socket's path may have."""
    with tempfile.TemporaryDirectory(prefix="gt-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


# --- plain data ----------------------------------------------------------------------


def make_table(cards: int = 2, *, blocks: int = 32) -> DeviceTable:
    """A node with ``GPU-0`` to ``GPU-<cards - 1>`` of *blocks* blocks each, on two NUMA nodes."""
    made = (replace(make_card(n, blocks=blocks), numa=n if n < 2 else None) for n in range(cards))
    return DeviceTable(Inventory(tuple(made)), BLOCK)


def make_settings(folder: Path, **changes: Any) -> Settings:
    """Settings of an agent on node ``n1`` that listens on any free port."""
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


# --- fakes of the adapters' Protocols --------------------------------------------------


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeCalls:
    """A :class:`agent.kubelet.server.Calls`: answers with the first places, or raises *error*."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.answer = ContainerEdits(
            {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}, ("/dev/nvidia0", "/dev/null")
        )
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def _note(self, call: str, ids: Sequence[str]) -> None:
        self.asked.append((call, tuple(ids)))
        if self.error is not None:
            raise self.error

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        self._note("prefer", available)
        return list(available)[:size]

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        self._note("allocate", device_ids)
        return self.answer

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        self._note("prestart", device_ids)


# --- a kubelet on unix sockets ---------------------------------------------------------


class FakeKubelet(rpc.RegistrationServicer, lister_grpc.PodResourcesListerServicer):
    """The two sockets of a kubelet: registration, and PodResources."""

    def __init__(self, folder: Path) -> None:
        self.plugin_dir = folder / "plugins"
        self.plugin_dir.mkdir(exist_ok=True)
        self.socket = self.plugin_dir / "kubelet.sock"
        self.pod_resources = folder / "pr.sock"
        self.registered: list[pb.RegisterRequest] = []
        self.refuse_next = 0
        self.on_register: Callable[[], None] = lambda: None
        self.turn_away = 0
        self.turns_away_as = grpc.StatusCode.RESOURCE_EXHAUSTED
        self.deaf_to = 0
        self.listed = 0
        self.hang = threading.Event()
        self.hang.set()
        self.pods: dict[str, dict[str, list[tuple[str, list[str]]]]] = {}
        self.uids: dict[str, str] = {}
        self.streams: dict[str, grpc.Channel] = {}
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> "FakeKubelet":
        """Serve both sockets anew, as a kubelet that starts."""
        self.start_registration()
        self.start_pod_resources()
        return self

    def start_registration(self) -> None:
        server = self._server(self.socket)
        rpc.add_RegistrationServicer_to_server(self, server)
        server.start()

    def start_pod_resources(self) -> None:
        server = self._server(self.pod_resources)
        lister_grpc.add_PodResourcesListerServicer_to_server(self, server)
        server.start()

    def stop(self) -> None:
        """Die: the sockets' files go with it."""
        self.hang.set()
        for server in self._servers:
            server.stop(0).wait(5)
        self._servers = []
        for endpoint in tuple(self.streams):
            self.streams.pop(endpoint).close()

    def restart(self) -> None:
        """Come back as a real kubelet does: the sockets in the directory are deleted (K11)."""
        self.stop()
        for each in self.plugin_dir.iterdir():
            each.unlink(missing_ok=True)
        self.start()

    def write_checkpoint(self) -> None:
        """Write down what the pods hold, as of UIDs that a test has told."""
        entries = [
            {
                "PodUID": self.uids.get(pod, f"uid-{pod}"),
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": ids},
            }
            for pod, containers in self.pods.items()
            for container, devices in containers.items()
            for resource, ids in devices
        ]
        text = json.dumps({"Data": {"PodDeviceEntries": entries or None}})
        (self.plugin_dir / ".new").write_text(text)
        (self.plugin_dir / ".new").replace(self.plugin_dir / CHECKPOINT)

    def _server(self, path: Path) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(8))
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        self._servers.append(server)
        return server

    @property
    def resources(self) -> list[str]:
        """The resources registered so far, in order."""
        return [each.resource_name for each in self.registered]

    def Register(  # noqa: N802 -- the API's name
        self, request: pb.RegisterRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        if self.refuse_next:
            self.refuse_next -= 1
            context.abort(grpc.StatusCode.UNKNOWN, "the kubelet does not like this")
        self.registered.append(request)
        self.on_register()
        if self.deaf_to:
            self.deaf_to -= 1
        else:
            self._stream(request.endpoint)
        return pb.Empty()

    def _stream(self, endpoint: str) -> None:
        """Ask a plugin that has registered for its devices, for as long as this kubelet lives."""
        channel = grpc.insecure_channel(
            f"unix:{self.plugin_dir / endpoint}", options=(("grpc.use_local_subchannel_pool", 1),)
        )
        stub = rpc.DevicePluginStub(channel)
        stream = stub.ListAndWatch(pb.Empty(), wait_for_ready=True)
        self.streams[endpoint] = channel

        def read() -> None:
            with suppress(grpc.RpcError, ValueError):
                for _ in stream:
                    pass

        threading.Thread(target=read, daemon=True).start()

    def serve(self, pod: str, cores: int, memory: int) -> list[str]:
        """Do what a kubelet does for the container ``c0`` of a pod; gives its device nodes."""
        held = self.pods.setdefault(pod, {}).setdefault("c0", [])
        nodes: list[str] = []
        asked = ("vmemory", NAMES.memory, memory), ("vcore", NAMES.core, cores)
        for stem, resource, size in asked:
            with plugin(self.path_of(stem)) as stub:
                offered = next(iter(stub.ListAndWatch(pb.Empty(), timeout=DEADLINE_S))).devices
                taken = {
                    each
                    for containers in self.pods.values()
                    for kind, ids in containers["c0"]
                    for each in ids
                    if kind == resource
                }
                free = [each.ID for each in offered if each.ID not in taken]
                chosen = ask_preferred(stub, free, size)
                nodes += [each.host_path for each in ask_allocate(stub, chosen).devices]
                held.append((resource, chosen))
                self.write_checkpoint()
        for (stem, *_), (_, chosen) in zip(asked, held[-len(asked) :], strict=True):
            with plugin(self.path_of(stem)) as stub:
                ask_prestart(stub, chosen)
        return nodes

    def cut(self, stem: str) -> None:
        """End the streams of a plugin, as a kubelet does when an earlier one breaks (K18)."""
        for endpoint in [each for each in self.streams if each.startswith(f"{stem}-")]:
            self.streams.pop(endpoint).close()

    def path_of(self, stem: str) -> Path:
        """Give the newest socket that a plugin has registered for one resource."""
        endpoints = [each.endpoint for each in self.registered]
        return self.plugin_dir / [each for each in endpoints if each.startswith(f"{stem}-")][-1]

    def List(  # noqa: N802 -- the API's name
        self, request: lister_pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> lister_pb.ListPodResourcesResponse:
        self.listed += 1
        if self.turn_away:
            self.turn_away -= 1
            context.abort(self.turns_away_as, "turned away")
        self.hang.wait(DEADLINE_S)
        return lister_pb.ListPodResourcesResponse(
            pod_resources=[
                lister_pb.PodResources(
                    namespace="default",
                    name=pod,
                    containers=[
                        lister_pb.ContainerResources(
                            name=container,
                            devices=[
                                lister_pb.ContainerDevices(
                                    resource_name=resource, device_ids=device_ids
                                )
                                for resource, device_ids in devices
                            ],
                        )
                        for container, devices in containers.items()
                    ],
                )
                for pod, containers in self.pods.items()
            ]
        )


@contextmanager
def plugin(socket: Path) -> Iterator[rpc.DevicePluginStub]:
    """Call a device plugin as the kubelet does."""
    options = (("grpc.max_receive_message_length", 64 * MIB), ("grpc.enable_http_proxy", 0))
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield rpc.DevicePluginStub(channel)


def ask_preferred(stub: rpc.DevicePluginStub, ids: Sequence[str], size: int) -> list[str]:
    """Call ``GetPreferredAllocation`` for one container."""
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=size)
    request = pb.PreferredAllocationRequest(container_requests=[asked])
    return list(
        stub.GetPreferredAllocation(request, timeout=DEADLINE_S).container_responses[0].deviceIDs
    )


def ask_allocate(stub: rpc.DevicePluginStub, ids: Sequence[str]) -> Any:
    """Call ``Allocate`` for one container."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
    return stub.Allocate(request, timeout=DEADLINE_S).container_responses[0]


def ask_prestart(stub: rpc.DevicePluginStub, ids: Sequence[str]) -> None:
    """Call ``PreStartContainer``."""
    stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=DEADLINE_S)


# --- an HTTP server that says what a test wants ----------------------------------------


class Scripted:
    """An API server that answers everything with one scripted response."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = b"{}"
        self.headers: Mapping[str, str] = {}
        self.hang = threading.Event()
        self.hang.set()
        self.requests: list[tuple[str, str]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                script.requests.append((self.command, self.path))
                script.hang.wait(DEADLINE_S)
                try:
                    self.send_response(script.status)
                    for name, value in script.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(script.body)
                except OSError:
                    pass  # the client has hung up, which is what some tests are about

            do_PATCH = do_GET  # noqa: N815 -- the name the server looks for

            def log_message(self, *_: object) -> None:
                """Keep the tests' output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def say(self, status: int, body: object) -> None:
        """ContainerEdits so from now on; *body* is bytes, or an object to be sent as JSON."""
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


def make_manifest(
    name: str,
    *limits: tuple[int, int],
    node: str = "n1",
    annotations: Mapping[str, str] | None = None,
    uid: str = "",
) -> dict[str, Any]:
    """A pod as the API has it, with a container ``c<i>`` for each (cores, memory)."""
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
