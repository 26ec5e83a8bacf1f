"""Which process connected, and whether it is still that one."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.enforcement.vcuda import socket_server
from agent.enforcement.vcuda.socket_server import identify_peer, read_start_time
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup
from tests.agent.builders import raising
from tests.agent.enforcement.vcuda.socket_site import T1, Make, SocketSite, ended, of_pid

_CONNECT = "import socket, sys; c = socket.socket(1); c.connect(sys.argv[1]); sys.stdin.read()"


def test_a_process_that_ended_meanwhile_is_turned_away(socket_site: SocketSite) -> None:
    """Its ID may be another's by then: what was read about that is not believed."""
    path = socket_site.folder / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        socket_site.listen(T1)
        (at,) = socket_site.server.sockets()
        for ends_while_identified in (False, True):
            with subprocess.Popen(
                [sys.executable, "-S", "-c", _CONNECT, str(path)], stdin=subprocess.PIPE
            ) as child:
                accepted, _ = listener.accept()

                def end(child: subprocess.Popen[bytes] = child) -> None:
                    child.kill()
                    child.wait(20)

                def identify(pid: int, end: Callable[[], None] = end) -> ContainerCgroup:
                    end()
                    return of_pid(pid)

                with accepted:
                    if not ends_while_identified:
                        assert identify_peer(at, accepted, of_pid) is not None
                        end()
                    assert identify_peer(at, accepted, identify) is None


def _stat(proc: Path, started: int, state: str = "S", name: str = "a) b (c") -> None:
    (proc / "7").mkdir(exist_ok=True, parents=True)
    rest = " ".join(["0"] * 18)
    (proc / "7" / "stat").write_text(f"7 ({name}) {state} {rest} {started} 0 0\n")


def test_a_process_is_told_by_when_it_was_started(tmp_path: Path) -> None:
    assert read_start_time(7, proc=tmp_path) == ""
    _stat(tmp_path, 100)
    assert read_start_time(7, proc=tmp_path) == "100"
    _stat(tmp_path, 101)  # the ID is another process's
    assert read_start_time(7, proc=tmp_path) == "101"
    _stat(tmp_path, 101, state="Z")
    assert read_start_time(7, proc=tmp_path) == ""
    (tmp_path / "7" / "stat").write_text("7 (cut")
    assert read_start_time(7, proc=tmp_path) == ""


def test_a_process_of_a_foreign_pid_namespace_is_turned_away_with_what_to_do(
    socket_site: SocketSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unseen = SimpleNamespace(size=socket_server._UCRED.size, unpack=lambda _raw: (0, 0, 0))
    monkeypatch.setattr(socket_server, "_UCRED", unseen)
    socket_site.listen(T1)
    with socket_site.connect(T1) as connection:
        assert ended(connection)
    assert any("the agent's pod needs hostPID: true" in r.getMessage() for r in caplog.records)
    assert socket_site.upstream.peers == []


def test_a_peer_that_is_gone_at_once_is_not_passed_on(
    socket_site: SocketSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket_site.listen(T1)
    with monkeypatch.context() as patch:
        patch.setattr(socket_server, "read_start_time", lambda _pid: "")
        for _ in range(5):
            with socket_site.connect(T1) as connection:
                assert ended(connection)
    assert socket_site.upstream.peers == []
    with socket_site.connect(T1) as connection:
        assert socket_site.peer(connection)


@pytest.mark.parametrize("problem", [CgroupError("two containers"), Unavailable("no /proc")])
def test_a_container_that_cannot_be_told_is_none(make: Make, problem: Exception) -> None:
    socket_site = make(raising(problem))
    socket_site.listen(T1)
    with socket_site.connect(T1) as connection:
        peer = socket_site.server.peer(socket_site.peer(connection))
        assert peer is not None
        assert peer.container is None
