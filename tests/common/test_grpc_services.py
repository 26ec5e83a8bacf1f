"""A service from its descriptor, over a real unix socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from common.grpc_services import add_service, make_stub
from common.kubelet_api import deviceplugin_pb2 as pb

DEADLINE_S = 60


class Plugin:
    """Handles a call and a stream, and no other method."""

    def Allocate(  # noqa: N802 -- the API's name
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        containers = request.container_requests
        return pb.AllocateResponse(
            container_responses=[
                pb.ContainerAllocateResponse(envs={"IDS": ",".join(each.devices_ids)})
                for each in containers
            ]
        )

    def ListAndWatch(  # noqa: N802 -- the API's name
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        for name in "ab":
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name)])


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[SimpleNamespace]:
    socket = f"unix:{tmp_path / 'plugin.sock'}"
    server = grpc.server(ThreadPoolExecutor(2))
    add_service(server, pb.DESCRIPTOR, "DevicePlugin", Plugin())
    server.add_insecure_port(socket)
    server.start()
    with grpc.insecure_channel(socket) as channel:
        yield make_stub(channel, pb.DESCRIPTOR, "DevicePlugin")
    server.stop(None).wait(DEADLINE_S)


def test_a_call_returns_its_response(stub: SimpleNamespace) -> None:
    containers = [pb.ContainerAllocateRequest(devices_ids=["a", "b"])]
    response = stub.Allocate(pb.AllocateRequest(container_requests=containers), timeout=DEADLINE_S)
    assert [dict(each.envs) for each in response.container_responses] == [{"IDS": "a,b"}]


def test_a_stream_returns_its_responses_one_by_one(stub: SimpleNamespace) -> None:
    responses = stub.ListAndWatch(pb.Empty(), timeout=DEADLINE_S)
    assert [[device.ID for device in each.devices] for each in responses] == [["a"], ["b"]]


def test_a_method_without_a_handler_is_unimplemented(stub: SimpleNamespace) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        stub.GetDevicePluginOptions(pb.Empty(), timeout=DEADLINE_S)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
