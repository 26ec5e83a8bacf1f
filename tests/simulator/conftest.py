"""A running API server, a client of it, and a webhook over TLS with a throw-away CA."""

from collections.abc import Iterator

import pytest
import trustme

from simulator.api.server import ApiServer, Settings
from simulator.client import ApiClient
from tests.simulator.api_helpers import Hook, running_hook


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Settings(bookmark_s=0.1)) as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as connected:
        yield connected


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def hook(authority: trustme.CA) -> Iterator[Hook]:
    with running_hook(authority) as running:
        yield running
