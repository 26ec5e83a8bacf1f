"""A simulated API server with the scene of :mod:`tests.view.scenes`, and a manual clock."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.placement.cluster.builders import Json
from tests.view import scenes
from view.cluster.timing import Timing


def populate(server: ApiServer, objects: Iterable[Json]) -> None:
    """Create objects with their status, Events about the pods that came of it."""
    first = ("Namespace", "Node", "Pod")
    uids: dict[str, str] = {}
    with ApiClient(server.url) as admin:
        for obj in sorted(objects, key=lambda each: (each["kind"] not in first, each["kind"])):
            if obj["kind"] == "Event":
                about = obj["involvedObject"]
                about["uid"] = uids.get(about["uid"], about["uid"])
                obj["lastTimestamp"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            server.apply(obj)
            if obj["kind"] == "Pod":
                of = obj["metadata"]
                path = f"/api/v1/namespaces/{of['namespace']}/pods/{of['name']}"
                status = {"status": obj["status"]}
                made = admin.patch(f"{path}/status", status)
                uids[of["uid"]] = made["metadata"]["uid"]


def requests_since(server: ApiServer, since: int) -> list[str]:
    """Return verb and path of each request after the first ones."""
    return [f"{each.verb} {each.path}" for each in server.requests[since:]]


class ManualTime:
    """Unix time, also used as monotonic time, that passes only if a test says so."""

    def __init__(self, now: float = 1_763_802_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def timing(self) -> Timing:
        """Return clocks that both show this time, and short pauses."""
        return Timing(now=self, monotonic=self, heartbeat=0.5, pause=0.05, redraw=0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One for all tests of a module, which change nothing."""
    with ApiServer() as api:
        populate(api, [*scenes.nodes(), *scenes.pods(), *scenes.events()])
        yield api


@pytest.fixture
def api(server: ApiServer) -> Iterator[ApiServer]:
    """The server of the module, for a test that denies permissions or responses."""
    yield server
    server.restore()


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig of that server, in the environment."""
    path = tmp_path / "config"
    path.write_text(kubeconfig_for(server.url))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path
