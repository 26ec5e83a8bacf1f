"""A running API server, a client of it, and a running kubelet."""

from collections.abc import Iterator

import pytest

from simulator.api.server import ApiServer, Settings
from simulator.client import ApiClient
from tests.simulator.kubelet_helpers import Node, node


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Settings(bookmark_s=0.1)) as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as connected:
        yield connected


@pytest.fixture
def n() -> Iterator[Node]:
    with node() as running:
        yield running
