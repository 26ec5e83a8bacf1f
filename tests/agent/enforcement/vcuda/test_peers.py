"""Which process connected, and whether it is still that one."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

from agent.enforcement.vcuda.peers import Presence, peer_pid

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
