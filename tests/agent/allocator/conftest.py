"""Nodes in memory."""

import pytest

from tests.in_memory.node import Node
from tests.in_memory.pods import gpu, make_pod


@pytest.fixture
def node() -> Node:
    """Two empty cards of 32 memory blocks, and an agent that has registered."""
    return Node()


@pytest.fixture
def old_node() -> Node:
    """A node whose ``List`` keeps rejected pods, which look like pods being admitted (K8)."""
    made = Node(active_only=False)
    made.admit(make_pod("before", gpu(10, 2)))
    return made
