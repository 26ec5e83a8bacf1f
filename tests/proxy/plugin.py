"""A device plugin with a real server on a real socket, in this process or one of its own.

    python -m tests.proxy.plugin FOLDER ENDPOINT KILL_AT

KILL_AT is ``METHOD:before`` or ``METHOD:after``, or empty: the first call of METHOD kills the
process, before or right after its response. It prints ``registered`` once it is.
"""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from common.kubelet_api import deviceplugin_pb2 as pb

RESOURCE = "example.com/widget"
WITHIN = 120.0
"""Seconds that only a hung program exceeds."""

_RESPONSES = {
    "GetDevicePluginOptions": b"",
    "Allocate": b"",
    "GetPreferredAllocation": pb.PreferredAllocationResponse(
        container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=["d1"])]
    ).SerializeToString(),
    "PreStartContainer": b"",
}


def register(folder: Path, endpoint: str, *, resource: str = RESOURCE, resources: str = "") -> None:
    """Register as a plugin does; *resources*: those of the plugin, separated by commas."""
    request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
    register_bytes(folder, request.SerializeToString(), resources=resources)


def register_bytes(folder: Path, request: bytes, *, resources: str = "") -> None:
    with grpc.insecure_channel(
        f"unix:{folder / 'kubelet.sock'}", (("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        channel.unary_unary("/v1beta1.Registration/Register", None, None)(
            request,
            timeout=WITHIN,
            wait_for_ready=True,
            metadata=(("plugin-resources", resources),) if resources else None,
        )


class Plugin:
    """A device plugin that puts its name into responses; tests change the rest."""

    def __init__(self, folder: Path, name: str, *, endpoint: str = "", devices: int = 4) -> None:
        self.name = name
        self.endpoint = endpoint or f"{name}.sock"
        self.on_allocate: Callable[[grpc.ServicerContext], object] = lambda _context: None
        self.calls: list[str] = []
        self.options = pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        ).SerializeToString()
        self.lists: list[bytes] = []
        self.fail_options = 0
        self._devices = devices
        self._folder = folder
        self._changed = threading.Condition()
        self._hanging: tuple[str, ...] = ()
        self._ended = True
        self._server: grpc.Server | None = None
        self.start()

    def start(self) -> None:
        self._ended = False
        self._server = grpc.server(ThreadPoolExecutor(16))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(functools.partial(self._handle, name))
            for name in _RESPONSES
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._watch)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        path = self._folder / self.endpoint
        path.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{quote(str(path))}")
        self._server.start()

    def register(self, **how: Any) -> "Plugin":
        register(self._folder, self.endpoint, **how)
        return self

    def offer(self, devices: int) -> None:
        with self._changed:
            self._devices = devices
            self._changed.notify_all()

    def hang(self, *methods: str) -> None:
        """Leave these calls, or all, without a response until :meth:`go_on`; streams stay open."""
        self._hanging = methods or tuple(_RESPONSES)

    def go_on(self) -> None:
        with self._changed:
            self._hanging = ()
            self._changed.notify_all()

    def end_stream(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def end(self) -> None:
        self.end_stream()
        if self._server is not None:
            stopped = self._server.stop(None)
            self.go_on()
            stopped.wait()

    def _handle(self, method: str, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls.append(method)
        with self._changed:
            self._changed.wait_for(lambda: method not in self._hanging)
        if method == "GetDevicePluginOptions":
            if self.fail_options and "Allocate" in self.calls:
                self.fail_options -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return self.options
        if method == "Allocate":
            self.on_allocate(context)
            return pb.AllocateResponse(
                container_responses=[pb.ContainerAllocateResponse(envs={"BY": self.name})]
            ).SerializeToString()
        return _RESPONSES[method]

    def _watch(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from self.lists
        if self.lists:
            context.add_callback(self.end_stream)
        while True:
            with self._changed:
                devices = self._devices
            if not self.lists:
                yield pb.ListAndWatchResponse(
                    devices=[pb.Device(ID=f"d{each}", health="Healthy") for each in range(devices)]
                ).SerializeToString()
            with self._changed:
                while devices == self._devices and not self._ended and context.is_active():
                    self._changed.wait(0.1)
                if self._ended or not context.is_active():
                    return


class _KillablePlugin(Plugin):
    def __init__(self, folder: Path, endpoint: str, kill_at: str) -> None:
        self._method, _, self._when = kill_at.partition(":")
        super().__init__(folder, endpoint, endpoint=endpoint)

    def _handle(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._kill_at(method, "before")
        self._kill_at(method, "after")
        return super()._handle(method, request, context)

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._kill_at("ListAndWatch", "before")
        for each in super()._watch(request, context):
            yield each
            self._kill_at("ListAndWatch", "after")

    def _kill_at(self, method: str, when: str) -> None:
        if (method, when) != (self._method, self._when):
            return
        if when == "after":
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # for the signal


if __name__ == "__main__":
    _KillablePlugin(Path(sys.argv[1]), *sys.argv[2:]).register()
    print("registered", flush=True)  # noqa: T201 -- the test reads it
    signal.pause()
