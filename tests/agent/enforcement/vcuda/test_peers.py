"""Which process connected, and whether it is still that one."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.enforcement.vcuda.peers import Presence, peer_pid
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup
from tests.agent.enforcement.vcuda.relay_site import T1, RelaySite, ended

_CONNECT = "import socket, sys; c = socket.socket(1); c.connect(sys.argv[1]); sys.stdin.read()"


def test_a_process_that_ended_meanwhile_is_turned_away(folder: Path) -> None:
    """Its ID may be another's by then: what was read about that is not believed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        with subprocess.Popen(
            [sys.executable, "-S", "-c", _CONNECT, str(folder / "s")], stdin=subprocess.PIPE
        ) as child:
            accepted, _ = listener.accept()
            assert peer_pid(accepted) == child.pid
            with accepted, Presence(accepted, child.pid) as presence:
                assert presence.lasts()
                child.kill()
                child.wait(20)
                assert not presence.lasts()
                with Presence(accepted, child.pid) as late:
                    assert not late.lasts()


class OldKernel:
    """A connection on a kernel before 6.5, or one that lost sight of the process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def getsockopt(self, *_: int) -> bytes:
        raise OSError(self.number, os.strerror(self.number))


def _stat(proc: Path, started: int, state: str = "S", name: str = "a) b (c") -> None:
    (proc / "7").mkdir(exist_ok=True, parents=True)
    rest = " ".join(["0"] * 18)
    (proc / "7" / "stat").write_text(f"7 ({name}) {state} {rest} {started} 0 0\n")


def test_before_6_5_a_process_is_told_by_when_it_was_started(tmp_path: Path) -> None:
    connection: socket.socket = OldKernel(errno.ENOPROTOOPT)  # type: ignore[assignment] # a fake
    _stat(tmp_path, 100)
    with Presence(connection, 7, proc=tmp_path) as presence:
        assert presence.lasts()
        _stat(tmp_path, 101)  # the ID is another process's
        assert not presence.lasts()
    _stat(tmp_path, 101, state="Z")
    with Presence(connection, 7, proc=tmp_path) as presence:
        assert not presence.lasts()
    (tmp_path / "7" / "stat").write_text("7 (cut")
    with Presence(connection, 7, proc=tmp_path) as presence:
        assert not presence.lasts()
    _stat(tmp_path, 100)
    connection = OldKernel(errno.ESRCH)  # type: ignore[assignment] # a kernel that lost sight of it
    with Presence(connection, 7, proc=tmp_path) as presence:
        assert not presence.lasts()


def test_a_process_of_a_foreign_pid_namespace_is_turned_away_with_what_to_do(
    relay_site: RelaySite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.enforcement.vcuda.peers.peer_pid", lambda _connection: 0)
    relay_site.ticket(T1)
    with relay_site.connect(T1) as connection:
        assert ended(connection)
    assert any("the agent's pod needs hostPID: true" in r.getMessage() for r in caplog.records)
    assert relay_site.upstream.peers == []


def test_a_peer_that_is_gone_at_once_is_not_passed_on(
    relay_site: RelaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay_site.ticket(T1)
    with monkeypatch.context() as patch:
        patch.setattr(Presence, "lasts", lambda _self: False)
        for _ in range(5):  # one more than a socket serves at a time: it takes nobody's place
            with relay_site.connect(T1) as connection:
                assert ended(connection)
    assert relay_site.upstream.peers == []
    with relay_site.connect(T1) as connection:
        assert relay_site.peer(connection)


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
