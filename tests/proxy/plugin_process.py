"""A device plugin of a process of its own, which dies where it is told to.

    python -m tests.proxy.plugin_process FOLDER ENDPOINT RESOURCE [DEATH]

DEATH is ``SIGNAL:METHOD:before`` or ``SIGNAL:METHOD:after``: the first call of METHOD kills the
process, before it is answered or right after. It answers with its own process ID, so that a test
knows who answered, and prints ``registered`` once it is.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from common.kubelet_api import deviceplugin_pb2 as pb
from common.kubelet_api import deviceplugin_pb2_grpc as rpc

_LATER_SECONDS = 0.02


class Plugin(rpc.DevicePluginServicer):
    """Offers four devices, and answers with its process ID."""

    def __init__(self, death: str) -> None:
        self._number, self._method, self._when = [*death.split(":"), "", ""][:3]

    def _die(self, method: str, when: str) -> None:
        if (method, when) != (self._method, self._when):
            return
        number = signal.Signals[self._number]
        if when == "after":
            threading.Timer(_LATER_SECONDS, os.kill, (os.getpid(), number)).start()
        else:
            os.kill(os.getpid(), number)
            time.sleep(60)

    def GetDevicePluginOptions(self, request: pb.Empty, context: object) -> pb.DevicePluginOptions:
        self._die("GetDevicePluginOptions", "before")
        self._die("GetDevicePluginOptions", "after")
        return pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )

    def ListAndWatch(
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        self._die("ListAndWatch", "before")
        yield pb.ListAndWatchResponse(
            devices=[pb.Device(ID=f"d{number}", health="Healthy") for number in range(4)]
        )
        self._die("ListAndWatch", "after")
        while context.is_active():
            time.sleep(0.05)

    def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: object
    ) -> pb.PreferredAllocationResponse:
        self._die("GetPreferredAllocation", "before")
        (asked,) = request.container_requests
        self._die("GetPreferredAllocation", "after")
        chosen = asked.available_deviceIDs[: asked.allocation_size]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    def Allocate(self, request: pb.AllocateRequest, context: object) -> pb.AllocateResponse:
        self._die("Allocate", "before")
        self._die("Allocate", "after")
        return pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse(envs={"PID": str(os.getpid())})]
        )

    def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: object
    ) -> pb.PreStartContainerResponse:
        self._die("PreStartContainer", "before")
        self._die("PreStartContainer", "after")
        return pb.PreStartContainerResponse()


def main(folder: Path, endpoint: str, resource: str, death: str = "") -> None:
    """Serve, and register with whoever listens in *folder*."""
    socket = folder / endpoint
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    rpc.add_DevicePluginServicer_to_server(Plugin(death), server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
        rpc.RegistrationStub(channel).Register(
            pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource),
            timeout=20,
            wait_for_ready=True,
        )
    print("registered", flush=True)  # noqa: T201 -- the test reads it
    ended.wait()
    server.stop(0.2).wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
