"""A running API server, and a client of it."""

from collections.abc import Iterator

import pytest

from simulator.api.server import ApiServer, Settings
from simulator.client import ApiClient


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Settings(bookmark_s=0.1)) as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as connected:
        yield connected
