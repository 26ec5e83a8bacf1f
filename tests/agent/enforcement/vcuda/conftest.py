"""A node with vcuda, and the sockets alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.enforcement.vcuda.socket_site import Make, SocketSite, socket_sites
from tests.agent.enforcement.vcuda.vcuda_site import Site, held


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
    with socket_sites(folder) as build:
        yield build


@pytest.fixture
def socket_site(make: Make) -> SocketSite:
    return make(listen=())
