"""An agent's process on a node of its own: what it is given, and the kubelet that it meets.

The agent runs as it does in its pod: with a service account, TLS and bytecode made beforehand,
since a container's root file system is read-only and its image holds it.
"""

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import urlsplit

import grpc

from agent.allocator.model.pod_view import PodView
from bench.caller import KubeletRecord, PluginFailed, shuffled
from bench.load import CARD_MEMORY, Load
from bench.servers import make_certificates
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import deviceplugin_pb2_grpc as rpc
from contract.names import Names
from contract.resource import Resource, count_of
from simulator.api.server import Settings
from simulator.cards import cards_file
from simulator.manifests import write_yaml

NODE = "bench"

_WITHIN_S = 60.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
)


def api_settings(folder: Path) -> Settings:
    """Make settings of an API server with TLS, and what a pod needs to trust it."""
    make_certificates(folder)
    (folder / "token").write_text("bench", encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return Settings(tls=context)


@contextmanager
def running_agent(  # noqa: PLR0913 -- what it runs with, by keyword
    load: Load,
    folder: Path,
    url: str,
    *,
    end: signal.Signals = signal.SIGTERM,
    options: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the agent's own command line.

    Args:
        load: what is on the node.
        folder: for the files of this node, with those of :func:`api_settings`.
        url: the API server's.
        end: the signal that ends the agent.
        options: further flags of the agent.
        environment: further variables.

    Raises:
        PluginFailed: what was done with it has failed; ends with its log.
    """
    write_yaml(folder / "cards.yaml", cards_file(load.cards, CARD_MEMORY))
    command = (
        f"-m bench.inpod {folder} --node-name {NODE} --cards {folder}/cards.yaml"
        f" --kubelet-dir {folder}/plugins --plugin-dir {folder}/plugins"
        f" --pod-resources-socket {folder}/r.sock"
        " --http-host 127.0.0.1 --http-port 0"
    )
    server = urlsplit(url)
    variables = os.environ | {
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        **environment,
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    with (
        (folder / "agent.log").open("wb") as log,
        subprocess.Popen(  # noqa: S603 -- our own program
            [
                sys.executable,
                *command.split(),
                *(word for pair in options.items() for word in pair),
            ],
            stderr=log,
            cwd=Path(__file__).parents[1],
            env=variables,
        ) as process,
    ):
        try:
            yield process
        except PluginFailed as error:
            text = (folder / "agent.log").read_text(encoding="utf-8")
            raise PluginFailed(f"{error}: {text[-2000:]}") from error
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(end)
            process.wait(_WITHIN_S)


class KubeletSide(rpc.RegistrationServicer):
    """The kubelet's side of the plugins: takes them, keeps their lists open, and calls them."""

    def __init__(self, folder: Path, load: Load) -> None:
        """Prepare; nothing listens yet."""
        self._folder = folder / "plugins"
        self._taken: dict[Resource, set[str]] = {resource: set() for resource in Resource}
        for _, held in load.held():
            for resource, ids in held.items():
                self._taken[resource].update(ids)
        self._endpoints: dict[str, str] = {}
        self._both = threading.Event()
        self._channels: dict[Resource, grpc.Channel] = {}
        self._lists: list[Iterator[api.ListAndWatchResponse]] = []
        self._free: dict[Resource, list[str]] = {}
        self._server = grpc.server(ThreadPoolExecutor(2))

    def __enter__(self) -> Self:
        """Listen where plugins register."""
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hang up."""
        for channel in self._channels.values():
            channel.close()
        self._server.stop(0).wait(5)

    def Register(  # noqa: N802 -- the protocol's name
        self,
        request: api.RegisterRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 -- gRPC's
    ) -> api.Empty:
        """Take a plugin."""
        self._endpoints[request.resource_name] = request.endpoint
        if len(self._endpoints) == len(Resource):
            self._both.set()
        return api.Empty()

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for both plugins, and keep the list of each open, as a kubelet does.

        Raises:
            PluginFailed: they do not come.
        """
        self.wait_registered(process)
        names = Names()
        for resource, name in ((Resource.CORE, names.core), (Resource.MEMORY, names.memory)):
            socket = self._folder / self._endpoints[name]
            channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
            self._channels[resource] = channel
            lists = iter(rpc.DevicePluginStub(channel).ListAndWatch(api.Empty()))
            self._lists.append(lists)
            listed = {each.ID for each in next(lists).devices}
            self._free[resource] = shuffled(listed - self._taken[resource])

    def forget(self) -> None:
        """Record that whoever had registered is dead."""
        self._endpoints.clear()
        self._both.clear()

    def wait_registered(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for both plugins.

        Raises:
            PluginFailed: they do not come.
        """
        deadline = time.monotonic() + _WITHIN_S
        while not self._both.wait(0.2):
            check_alive(process, deadline, "its registration")

    def serve(self, view: PodView, record: KubeletRecord) -> None:
        """Make the calls for one new container, and show it in the record."""
        held: dict[Resource, Sequence[str]] = {}
        record.show(view, held)
        demand = view.demand.containers[0].demand
        for resource, channel in self._channels.items():
            stub = rpc.DevicePluginStub(channel)
            asked = api.ContainerPreferredAllocationRequest(
                available_deviceIDs=self._free[resource],
                allocation_size=count_of(demand, resource),
            )
            answer = stub.GetPreferredAllocation(
                api.PreferredAllocationRequest(container_requests=[asked]), timeout=_WITHIN_S
            )
            ids = tuple(answer.container_responses[0].deviceIDs)
            request = api.ContainerAllocateRequest(devices_ids=ids)
            stub.Allocate(api.AllocateRequest(container_requests=[request]), timeout=_WITHIN_S)
            self._free[resource] = [each for each in self._free[resource] if each not in ids]
            held[resource] = ids
            record.show(view, held)
        for resource, given in held.items():
            rpc.DevicePluginStub(self._channels[resource]).PreStartContainer(
                api.PreStartContainerRequest(devices_ids=given), timeout=_WITHIN_S
            )


def wait(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", what: str) -> None:
    """Wait until *condition* holds.

    Raises:
        PluginFailed: the agent has died, or it does not come to hold.
    """
    deadline = time.monotonic() + _WITHIN_S
    while not condition():
        check_alive(process, deadline, what)
        time.sleep(0.2)


def check_alive(process: "subprocess.Popen[bytes]", deadline: float, what: str) -> None:
    """Raise if the agent has died, or if it is time to stop.

    Raises:
        PluginFailed: it is.
    """
    if process.poll() is not None:
        raise PluginFailed(f"the agent has died with status {process.returncode}")
    if time.monotonic() > deadline:
        raise PluginFailed(f"the agent did not come to {what} in {_WITHIN_S:g} s")
