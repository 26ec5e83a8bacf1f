"""What a container is told over gRPC, and what it is not; answers are in ``test_manager``."""

from pathlib import Path

import grpc
import pytest

from agent.enforcement.vcuda.api import vcuda_pb2 as api
from agent.enforcement.vcuda.server import VcudaServer
from tests.agent.enforcement.vcuda.client import stub
from tests.agent.enforcement.vcuda.vcuda_site import Site


def test_a_server_that_cannot_listen_is_told(folder: Path) -> None:
    with pytest.raises(OSError, match=r"^cannot bind "):
        VcudaServer(lambda _address, _claims: None, folder / ("x" * 120))


def test_a_large_message_is_refused(site: Site, ticket_dir: Path) -> None:
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        site.register(ticket_dir, pod_uid="x" * 20_000)
    with stub(ticket_dir) as client, pytest.raises(grpc.RpcError):
        client.RegisterVDevice(api.VDeviceRequest(), timeout=5, metadata=[("x-a", "b" * 40_000)])
    site.register(ticket_dir)
