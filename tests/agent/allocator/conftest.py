"""A node in memory."""

import pytest

from tests.in_memory.node import Node


@pytest.fixture
def node() -> Node:
    """Two empty cards of 32 memory blocks, and an agent that has registered."""
    return Node()
