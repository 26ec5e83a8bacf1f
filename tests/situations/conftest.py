"""Waits of the agent, longer or shorter than on a real node."""

import pytest

import agent.allocator.observer
import agent.kubelet.podresources
from tests.agent.fakes import DEADLINE_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait longer for ``List``: without it an agent guesses."""
    monkeypatch.setattr(agent.allocator.observer, "LIST_WITHIN", DEADLINE_S)


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses before an agent connects to ``List`` again."""
    options = dict(agent.kubelet.podresources._CHANNEL_OPTIONS)
    options["grpc.max_reconnect_backoff_ms"] = 50
    monkeypatch.setattr(agent.kubelet.podresources, "_CHANNEL_OPTIONS", tuple(options.items()))
    # Longer than the longest pause between attempts to connect.
    monkeypatch.setattr(agent.kubelet.podresources, "_BACKOFF_SECONDS", 0.15)
