"""An API server, and an agent's client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kubernetes_api.client import Api
from simulator.api.server import ApiServer, Settings, kubeconfig_for
from simulator.client import ApiClient
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import make_kubelet
from tests.agent.fakes import short_dir
from tests.agent.nvml_node import NvmlScript, load


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets, with a short path."""
    with short_dir() as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlScript:
    """Two sound cards of the stand-in of NVML, which is loaded."""
    load(monkeypatch, tmp_path)
    monkeypatch.delenv("GPU_TURNSTILE_CARDS", raising=False)
    made = NvmlScript(tmp_path / "node")
    monkeypatch.setenv("NVML_STUB", str(made.path))
    return made


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    made = make_kubelet(folder)
    yield made
    made.stop()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Settings(bookmark_s=0.1)) as running:
        yield running


@pytest.fixture
def admin(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as connected:
        yield connected


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for(server.url))
    return path


@pytest.fixture
def api(kubeconfig: Path) -> Iterator[Api]:
    client = Api(kubeconfig)
    yield client
    client.close()
