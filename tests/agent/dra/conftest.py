"""A node of claims."""

from pathlib import Path

import pytest

from tests.agent.dra.claim_node import ClaimNode


@pytest.fixture
def claims(tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path)
