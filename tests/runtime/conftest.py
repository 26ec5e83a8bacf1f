"""A real container runtime, and GPU nodes on it.

Tests are given to workers one by one, so every worker that comes to one of these has a
runtime of its own (it starts in half a second); no two share anything. It is containerd, or CRI-O
with ``GPU_TURNSTILE_TEST_RUNTIME=crio``.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import grpc
import pytest

from tests.agent.fakes import short_dir
from tests.runtime.containerd import WHICH, Runtime, Unusable, containerd
from tests.runtime.crio import crio
from tests.runtime.gpunode import GpuNode, card_devices
from tests.runtime.pods import Pod


@pytest.fixture(scope="session")
def outcome() -> Iterator[Runtime | str]:
    """A container runtime, or why there is none; started only once."""
    start = {"containerd": containerd, "crio": crio}[os.environ.get(WHICH, "containerd")]
    with ExitStack() as stack:
        found: Runtime | str
        try:
            found = stack.enter_context(start())
            _try(found)
        except Unusable as error:
            found = str(error)
        yield found


def _try(running: Runtime) -> None:
    """Run one container, before any test of our code: a machine can have many reasons."""
    with short_dir() as hand:
        try:
            pod = Pod(running, "try", str(uuid.uuid4()), hand)
            pod.start("main", {}).sh("true")
            pod.remove()
        except grpc.RpcError as error:
            raise Unusable(f"it starts no container: {error.details()}") from error


@pytest.fixture
def runtime(outcome: Runtime | str) -> Runtime:
    if isinstance(outcome, str):
        pytest.skip(f"no container runtime: {outcome}")
    return outcome


class MakeNode(Protocol):
    """Starts a node with so many cards; the agent's other settings are the usual ones."""

    def __call__(self, cards: int = 2, **settings: Any) -> GpuNode: ...


@pytest.fixture
def make_node(runtime: Runtime) -> Iterator[MakeNode]:
    with ExitStack() as stack:

        def make(cards: int = 2, **settings: Any) -> GpuNode:
            devices = stack.enter_context(card_devices(cards))
            return stack.enter_context(GpuNode(runtime, devices, **settings))

        yield make
