"""A device plugin with fixed responses, to measure the proxy before it.

``python -m bench.echo FOLDER DEVICES`` serves and registers two resources. Each response has as few
bytes as a real plugin's may have. Messages are not decoded, so only gRPC is timed.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from common.grpc_services import make_stub
from common.kubelet_api import deviceplugin_pb2 as api

RESOURCES = ("bench.example/core", "bench.example/memory")
CHOSEN = 5
"""Number of device IDs that a container requests."""
_CORES = 800
_MESSAGE_BYTES = 64 << 20


def device_ids(devices: int) -> tuple[list[str], list[str]]:
    """Return device IDs as long as ours, on eight cards: those of cores, and those of memory."""
    ids = [f"GPU-{each % 8:08x}-2c1e-4d5f-9a8b-7c6d5e4f3a2b::{each}" for each in range(devices)]
    return ids[:_CORES], ids[_CORES:]


def _serve(folder: Path, name: str, ids: list[str]) -> grpc.Server:
    chosen = ids[:CHOSEN]
    options = api.DevicePluginOptions(
        pre_start_required=True, get_preferred_allocation_available=True
    )
    responses = {
        "GetDevicePluginOptions": options,
        "GetPreferredAllocation": api.PreferredAllocationResponse(
            container_responses=[api.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        ),
        "Allocate": api.AllocateResponse(
            container_responses=[api.ContainerAllocateResponse(envs={"CARD": chosen[0]})]
        ),
        "PreStartContainer": api.PreStartContainerResponse(),
    }
    devices = api.ListAndWatchResponse(
        devices=[api.Device(ID=each, health="Healthy") for each in ids]
    ).SerializeToString()

    def returning(response: bytes) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        return lambda _request, _context: response

    def list_and_watch(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield devices
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()

    handlers = {
        method: grpc.unary_unary_rpc_method_handler(returning(response.SerializeToString()))
        for method, response in responses.items()
    }
    handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(list_and_watch)
    server = grpc.server(
        ThreadPoolExecutor(8),
        options=(
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MESSAGE_BYTES),
        ),
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
    )
    endpoint = f"{name.partition('/')[2]}.sock"
    server.add_insecure_port(f"unix:{folder / endpoint}")
    server.start()
    with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
        make_stub(channel, api.DESCRIPTOR, "Registration").Register(
            api.RegisterRequest(
                version="v1beta1", endpoint=endpoint, resource_name=name, options=options
            ),
            timeout=20,
            wait_for_ready=True,
        )
    return server


def main(folder: Path, devices: int) -> None:
    """Serve until standard input ends."""
    offers = zip(RESOURCES, device_ids(devices), strict=True)
    servers = [_serve(folder, name, ids) for name, ids in offers]
    sys.stdin.read()
    for each in servers:
        each.stop(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
