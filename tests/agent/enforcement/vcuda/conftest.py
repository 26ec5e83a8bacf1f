"""A node with vcuda, and the sockets alone."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.vcuda.socket_server import ConnectionBudget, Identify
from tests.agent.enforcement.vcuda.socket_site import T1, T2, Make, SocketSite, of_pid
from tests.agent.enforcement.vcuda.vcuda_site import Site, held
from tests.agent.fakes import DEADLINE_S


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with Site(folder) as running:
        yield running


@pytest.fixture
def ticket_dir(site: Site) -> Path:
    """The directory of a container that runs, with this process in it."""
    site.run(pids=(os.getpid(), 7, 5))
    return site.admit(held())


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    made: list[SocketSite] = []

    def build(
        identify: Identify = of_pid, listen: Sequence[str] = (T1, T2), **given: Any
    ) -> SocketSite:
        budget = ConnectionBudget(**{"seconds": 2 * DEADLINE_S, **given})
        made.append(SocketSite(folder, budget, identify))
        for digest in listen:
            made[-1].listen(digest)
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def socket_site(make: Make) -> SocketSite:
    return make(listen=())
