"""Waits of the agent, longer or shorter than on a real node."""

import pytest

import agent.allocator.observer
import agent.kubelet.podresources
import agent.kubelet.registration
from tests.agent.fakes import DEADLINE_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait longer for ``List``: without it an agent guesses."""
    monkeypatch.setattr(agent.allocator.observer, "LIST_WITHIN", DEADLINE_S)


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten an agent's pauses between retries: there are hundreds of restarts."""
    monkeypatch.setattr(agent.kubelet.registration, "_BACKOFF_SECONDS", (0.05, 0.05))
    options = dict(agent.kubelet.podresources._CHANNEL_OPTIONS)
    options["grpc.max_reconnect_backoff_ms"] = 50
    monkeypatch.setattr(agent.kubelet.podresources, "_CHANNEL_OPTIONS", tuple(options.items()))
    # Longer than the longest pause between attempts to connect.
    monkeypatch.setattr(agent.kubelet.podresources, "_BACKOFF_SECONDS", 0.15)
