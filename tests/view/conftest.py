"""A simulated API server with the scene of :mod:`tests.view.scenes`."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.api.server import ApiServer, kubeconfig_for
from tests.placement.cluster.builders import Json
from tests.view import scenes


def fill(api: ApiServer, *pods: Json) -> None:
    """Create pods with their status, which a creation leaves out."""
    for pod in pods:
        metadata = pod["metadata"]
        api.apply(pod)
        request = urllib.request.Request(
            f"{api.url}/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status",
            method="PATCH",
            data=json.dumps({"status": pod["status"]}).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        with urllib.request.urlopen(request) as response:
            response.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One for all tests of a module, which change nothing."""
    with ApiServer() as api:
        api.apply(*scenes.nodes(), *scenes.events())
        fill(api, *scenes.pods())
        yield api


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig of that server, in the environment."""
    path = tmp_path / "config"
    path.write_text(kubeconfig_for(server.url))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path
