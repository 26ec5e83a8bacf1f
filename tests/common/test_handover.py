"""The order of a handover's steps, and a service from its descriptor over a unix socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from common.grpc_services import add_service, make_stub
from common.handover import hand_over
from common.kubelet_api import deviceplugin_pb2 as pb


class Recorder:
    """A resource that records its calls."""

    def __init__(self) -> None:
        self.held = 0
        self.steps: list[str] = []

    def hold(self) -> None:
        self.steps.append("hold")

    def release(self) -> None:
        self.steps.append("release")

    def end_streams(self) -> None:
        self.steps.append("end streams")


def test_the_other_plugin_has_its_lists_handled_before_the_streams_end() -> None:
    """Else the kubelet drops its next registration, too (K18)."""
    resource = Recorder()
    writes = 0

    def write() -> None:
        nonlocal writes
        writes += 1

    steps = hand_over(
        [resource],
        let_register=lambda: resource.steps.append("register"),
        checkpoint=lambda: writes,
    )
    held = next(steps)
    assert resource.steps == ["hold"]
    assert not held.condition()
    resource.held = 1
    assert held.condition()
    for done in (["hold", "register"], ["hold", "register", "end streams"]):
        listed = next(steps)
        assert resource.steps == done
        assert not listed.condition()
        write()
        assert listed.condition()
        assert not next(steps).condition()  # time for the next resource's list
    assert next(steps, None) is None
    assert resource.steps == ["hold", "register", "end streams", "release"]


def test_held_calls_continue_if_the_registration_fails() -> None:
    resource = Recorder()

    def fail() -> None:
        raise OSError("the kubelet was replaced")

    steps = hand_over([resource], let_register=fail, checkpoint=lambda: None)
    next(steps)
    with pytest.raises(OSError, match="the kubelet was replaced"):
        next(steps)
    assert resource.steps == ["hold", "release"]


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
