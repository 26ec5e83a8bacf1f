import threading
from collections.abc import Iterator

import pytest

from simulator.api.resources import PODS as POD_RESOURCE
from simulator.api.server import ApiServer
from simulator.client import ApiClient, ApiError, Watch, WatchEvent
from tests.simulator.api_helpers import PODS, pod

PROMPT_S = 5.0  # generous for a noisy machine, far below the 300 s a watch lasts


@pytest.fixture
def watch(server: ApiServer, client: ApiClient) -> Iterator[Watch]:
    # Nothing will ever come: whoever reads waits.
    server.delay_watches(POD_RESOURCE, 3600)
    client.create(PODS, pod())
    with client.watch("/api/v1/pods", resource_version="1") as running:
        yield running


def reader(watch: Watch) -> tuple[threading.Thread, list[WatchEvent]]:
    seen: list[WatchEvent] = []
    thread = threading.Thread(target=lambda: seen.extend(watch))
    thread.start()
    return thread, seen


def test_closing_the_client_ends_its_watches(watch: Watch, client: ApiClient) -> None:
    thread, _ = reader(watch)
    client.close()
    thread.join(PROMPT_S)
    assert not thread.is_alive()


def test_a_stop_event_ends_a_watch(server: ApiServer, client: ApiClient) -> None:
    stop = threading.Event()
    with client.watch("/api/v1/pods", resource_version="1", stop=stop) as watch:
        thread, _ = reader(watch)
        stop.set()
        thread.join(PROMPT_S)
        assert not thread.is_alive()


def test_an_expired_version_is_an_error_410(server: ApiServer, client: ApiClient) -> None:
    client.create(PODS, pod())
    server.expire_history()
    with (
        client.watch("/api/v1/pods", resource_version="1") as watch,
        pytest.raises(ApiError) as raised,
    ):
        next(watch)
    assert (raised.value.status, raised.value.reason) == (410, "Expired")
    assert list(watch) == []
