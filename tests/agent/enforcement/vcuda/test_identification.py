"""Who a peer is, by what the kernel tells of its process."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from agent.enforcement.vcuda import peers
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup
from tests.agent.enforcement.vcuda.relay_site import T1, RelaySite, ended
from tests.agent.fakes import eventually

_CHILD = """
import socket, sys
c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); c.sendall(b"x")
print("said", flush=True); sys.stdin.read()
"""


def test_a_process_of_another_kind_is_told_by_its_pid(relay_site: RelaySite) -> None:
    path = relay_site.ticket(T1) / "vcuda.sock"
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "said\n"
        eventually(lambda: relay_site.upstream.peers, "it was passed on")
        peer = relay_site.relay.peer(relay_site.upstream.peers[-1])
        assert peer is not None
        assert peer.pid == child.pid
        child.stdin.close()


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
    make: Callable[..., RelaySite], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.Presence, "lasts", lambda _self: False)
    relay_site = make()
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
