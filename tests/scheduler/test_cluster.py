"""Requests of the binder: each has its time, whether or not a thread is free for it."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import Unavailable
from scheduler import cluster
from scheduler.cluster import SchedulerApi
from simulator.api.faults import SILENCE, Fault
from simulator.api.server import ApiServer, kubeconfig_for


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for(server.url))
    return path


async def bind_all(asked: SchedulerApi, pods: int) -> list[object]:
    binds = (asked.bind("ns", f"pod-{number}", {}) for number in range(pods))
    return list(await asyncio.gather(*binds, return_exceptions=True))


def test_a_binding_that_waits_for_a_thread_gets_no_extra_time(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is made later could take effect when another replica leads."""
    monkeypatch.setattr(cluster, "BIND_SECONDS", 0.5)
    server.fail(SILENCE)
    asked = SchedulerApi(kubeconfig, bindings=1)
    begun = time.monotonic()
    errors = asyncio.run(bind_all(asked, 3))
    asked.close()
    assert [type(each) for each in errors] == [Unavailable] * 3
    assert time.monotonic() - begun < 60


def test_the_api_server_gives_a_binding_up_when_its_time_is_over(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it spent waiting for a thread as well: the lease ends soon after."""
    monkeypatch.setattr(cluster, "BIND_SECONDS", 60.0)
    server.fail(Fault(201, b"{}", delay_s=1.0))  # the second one waits for the thread meanwhile
    asked = SchedulerApi(kubeconfig, bindings=1)
    asyncio.run(bind_all(asked, 2))
    asked.close()
    found = (re.fullmatch(r"timeout=([0-9.]+)s", each.query) for each in server.requests)
    first, second = (float(each[1]) for each in found if each)
    assert first <= cluster.BIND_SECONDS
    assert second <= cluster.BIND_SECONDS - 0.1  # less than the delay: it may be made later
