"""A kubelet that runs, and the settings of an agent beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.settings import Settings
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import make_kubelet
from tests.agent.fakes import DEADLINE_S, make_settings, write_cards


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait longer for List and the API: an agent that is starved guesses."""
    monkeypatch.setattr("agent.allocator.observer.LIST_WITHIN", DEADLINE_S)
    monkeypatch.setattr("agent.kubernetes_api.client._GET_SECONDS", DEADLINE_S)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    made = make_kubelet(folder)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def settings(kubelet: Kubelet, kubeconfig: Path, tmp_path: Path, patient: None) -> Settings:
    return make_settings(
        tmp_path,
        kubeconfig=kubeconfig,
        kubelet_dir=kubelet.settings.plugin_dir,
        plugin_dir=kubelet.settings.plugin_dir,
        pod_resources_socket=kubelet.settings.pod_resources_socket,
        cards=write_cards(tmp_path / "cards.yaml"),
    )
