"""A client as gpu-client is one; small, for the processes that tests start."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import grpc

from agent.enforcement.vcuda.api import vcuda_pb2_grpc as rpc


@contextlib.contextmanager
def stub(ticket_dir: Path) -> Iterator[rpc.VCUDAServiceStub]:
    """Connect to the socket of a ticket, and name it as the authority."""
    options = (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "/etc/vcuda/vcuda.sock"),
    )
    folder = os.open(ticket_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with grpc.insecure_channel(
            f"unix:/proc/self/fd/{folder}/vcuda.sock", options=options
        ) as channel:
            yield rpc.VCUDAServiceStub(channel)
    finally:
        os.close(folder)
