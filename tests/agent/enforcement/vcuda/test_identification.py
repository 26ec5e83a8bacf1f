"""Who a peer is, by what the kernel tells of its process."""

from collections.abc import Callable

import pytest

from agent.enforcement.vcuda.peers import Presence
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup
from tests.agent.enforcement.vcuda.relay_site import T1, RelaySite, ended


def test_a_process_of_a_foreign_pid_namespace_is_turned_away_with_what_to_do(
    relay_site: RelaySite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.enforcement.vcuda.identification.peer_pid", lambda _connection: 0)
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        assert ended(connection)
    assert any("the agent's pod needs hostPID: true" in r.getMessage() for r in caplog.records)
    assert relay_site.upstream.peers == []


def test_a_peer_that_is_gone_at_once_is_not_passed_on(
    relay_site: RelaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "lasts", lambda _self: False)
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        assert ended(connection)
    assert relay_site.upstream.peers == []


@pytest.mark.parametrize("problem", [CgroupError("two containers"), Unavailable("no /proc")])
def test_a_container_that_cannot_be_told_is_none(
    make: Callable[..., RelaySite], problem: Exception
) -> None:
    def identify(_pid: int) -> ContainerCgroup | None:
        raise problem

    relay_site = make(identify=identify)
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        peer = relay_site.relay.peer(relay_site.peer(connection))
        assert peer is not None
        assert peer.container is None
