"""Sessions with the stand-in of NVML."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.nvml_node import NvmlScript, load


@pytest.fixture
def library(
    node: NvmlScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """NVML; a test that leaves a session or an event set open fails."""
    loaded = load(monkeypatch, tmp_path)
    yield loaded
    assert (loaded.stub_sessions(), loaded.stub_sets()) == (0, 0)
