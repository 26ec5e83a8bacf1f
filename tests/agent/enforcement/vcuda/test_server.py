"""What a container is told over gRPC, and what it is not."""

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.enforcement.ticket_dirs import TicketDirs
from agent.enforcement.vcuda.claims import Claims, NotYet
from agent.enforcement.vcuda.server import VcudaServer
from tests.agent.enforcement.vcuda.vcuda_site import (
    ID_A,
    POD_A,
    Site,
    entitlement,
)

ME = os.getpid()


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with Site(folder) as running:
        yield running


@pytest.fixture
def ticket_dir(site: Site) -> Path:
    """The directory of a container that runs, with this process in it."""
    site.run()
    site.put(ID_A, POD_A, ME, 7, 5)
    return site.admit(entitlement())


def _code(site: Site, ticket_dir: Path, **claims: str) -> tuple[str, str | None]:
    with pytest.raises(grpc.RpcError) as error:
        site.register(ticket_dir, **claims)
    return error.value.code().name, error.value.details()


def test_a_server_that_cannot_listen_is_told(folder: Path) -> None:
    class Never:
        def register(self, address: str, claims: Claims) -> None:
            raise NotYet

    with pytest.raises(OSError, match=r"^cannot bind "):
        VcudaServer(Never(), folder / ("x" * 120))


def test_a_large_message_is_refused(site: Site, ticket_dir: Path) -> None:
    assert _code(site, ticket_dir, pod_uid="x" * 20_000)[0] == "RESOURCE_EXHAUSTED"
    site.register(ticket_dir)


def test_what_is_not_foreseen_tells_a_container_nothing(
    site: Site, ticket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("/var/lib/secret")

    monkeypatch.setattr(TicketDirs, "write", breaks)
    assert _code(site, ticket_dir) == ("INTERNAL", "internal error")
    assert site.results == ["failed"]
