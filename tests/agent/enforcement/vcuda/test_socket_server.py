"""The containers' sockets, and the server at them, between real sockets and real processes."""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.enforcement.vcuda import socket_server
from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.enforcement.vcuda.socket_server import ConnectionBudget, identify_peer, read_start_time
from agent.errors import EnforcementError, Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup
from tests.agent.builders import raising
from tests.agent.enforcement.vcuda.socket_site import (
    T1,
    T2,
    Make,
    SocketSite,
    ended,
    of_pid,
    receive,
)
from tests.agent.fakes import DEADLINE_S, eventually


def test_a_peer_name_of_another_socket_is_unknown(socket_site: SocketSite) -> None:
    for name in ("", "unix:", "unix:/x", "unix-abstract:gpu-turnstile-1", "ipv4:127.0.0.1:5"):
        assert socket_site.server.peer(name) is None


def test_a_replaced_directory_has_another_socket_and_the_old_one_is_closed(
    socket_site: SocketSite,
) -> None:
    old = socket_site.listen(T1)
    (at,) = socket_site.server.sockets()
    with socket_site.connect(T1) as lingering:
        socket_site.peer(lingering)
        old.rename(socket_site.folder / "old")
        socket_site.listen(T1)
        assert ended(lingering)
    (other,) = socket_site.server.sockets()
    assert (other is at, at.closed) == (False, True)
    with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as late:
        late.connect(str(socket_site.folder / "old" / "vcuda.sock"))


def test_a_closed_socket_has_no_listener(socket_site: SocketSite) -> None:
    socket_site.listen(T1)
    socket_site.listen(T2)
    with socket_site.connect(T1) as connection:
        name = socket_site.peer(connection)
        assert socket_site.server.peer(name) is not None
        (at,) = [each for each in socket_site.server.sockets() if each.digest == T1]
        socket_site.server.close(T1)
        assert at.closed  # at once: another container's files are not written there
        socket_site.server.close("there is none")
        assert ended(connection)
        eventually(lambda: socket_site.server.peer(name) is None, "the name is forgotten")
    with pytest.raises(ConnectionRefusedError):
        socket_site.connect(T1)
    assert socket_site.serves(T2)


@pytest.mark.parametrize("how", ["new", "removed", "replaced by a link"])
def test_every_user_may_connect_to_a_socket_that_is_new_or_had_vanished(
    socket_site: SocketSite, how: str
) -> None:
    path = socket_site.folder / T1 / "vcuda.sock"
    if how != "new":
        socket_site.listen(T1)
        path.unlink()
    if how == "replaced by a link":
        path.symlink_to("/dev/null")
    before = os.umask(0o777)
    try:
        socket_site.listen(T1)
    finally:
        os.umask(before)
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o666
    assert [each.name for each in path.parent.iterdir()] == ["vcuda.sock"]
    assert socket_site.serves(T1)


def test_a_path_longer_than_a_sockets_is_listened_at(socket_site: SocketSite) -> None:
    """The container's own path to it is short: /etc/vcuda/vcuda.sock."""
    long = socket_site.folder / ("x" * 120)
    long.mkdir()
    folder = os.open(long, os.O_RDONLY | os.O_DIRECTORY)
    socket_site.server.open(T1, os.dup(folder))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(f"/proc/self/fd/{folder}/vcuda.sock")
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
    os.close(folder)


def test_a_directory_without_a_working_socket_is_reported(
    socket_site: SocketSite, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    taken = os.open(folder / "file", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        socket_site.server.open(T1, taken)
    assert socket_site.server.sockets() == ()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken)
    path = socket_site.listen(T1)
    (path / "vcuda.sock").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", raising(OSError(errno.ENOSPC, "no space")))
        with pytest.raises(OSError, match="no space"):
            socket_site.listen(T1)
    socket_site.listen(T1)  # its container has had a socket before, and must not go without
    assert socket_site.serves(T1)
    gone = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    (path / "vcuda.sock").unlink()
    path.rmdir()
    with pytest.raises(FileNotFoundError):
        socket_site.server.open(T1, gone)


def test_a_borrowed_folder_outlives_its_socket_which_then_lends_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ContainerSocket(T1, os.open(folder, os.O_RDONLY))
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", raising(OSError(errno.EMFILE, "too many")))
        with pytest.raises(EnforcementError) as error, at.folder():
            pytest.fail("there is none")
    assert str(error.value) == "state-dir: cannot be opened: Too many open files"
    with at.folder() as lent:
        at.close()
        at.close()
        assert at.listening.fileno() == -1
        assert os.fstat(lent).st_ino == folder.stat().st_ino
    with pytest.raises(EnforcementError, match="directory is not in use any more"), at.folder():
        pytest.fail("it is closed")


# --- what is passed on -------------------------------------------------------------------


def test_a_peer_that_stops_sending_still_gets_the_response(socket_site: SocketSite) -> None:
    socket_site.listen(T1)
    socket_site.upstream.hold.clear()
    with socket_site.connect(T1) as connection:
        connection.sendall(b"question")
        connection.shutdown(socket.SHUT_WR)
        socket_site.upstream.hold.set()
        assert receive(connection, 100) == b"question"


def test_a_peer_that_sends_too_much_is_disconnected(make: Make) -> None:
    socket_site = make(bytes=100_000)
    with (
        socket_site.connect(T1) as talker,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        for _ in range(1000):
            talker.sendall(b"x" * 1000)
            talker.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                talker.recv(65536)
            talker.settimeout(DEADLINE_S)
        pytest.fail("it may send without end")


def test_a_peer_that_does_not_read_delays_no_other(make: Make) -> None:
    """What it is sent stays with the sender: the server keeps one piece of it."""
    socket_site = make(bytes=64 << 20)
    with socket_site.connect(T1) as peer:
        peer.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:
                peer.send(b"x" * 65536)
        assert socket_site.serves(T2)


# --- what peers may use up ---------------------------------------------------------------


def test_a_flooding_container_is_refused_and_hurts_no_other(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    socket_site = make(container=2)
    served = [socket_site.connect(T1) for _ in range(2)]
    for each in served:
        assert socket_site.peer(each)
    for _ in range(3):
        assert socket_site.hangs_up(T1)
    assert socket_site.serves(T2)
    for each in served:  # nor does it lose what it has
        assert socket_site.peer(each)
    (line,) = [each for each in caplog.records if each.getMessage() == "too many connections"]
    assert (vars(line)["directory"], vars(line)["reason"]) == (T1, "2 of this container, 2 of all")
    served.pop().close()
    eventually(lambda: socket_site.serves(T1), "it is served once one has closed")
    served.pop().close()


def test_all_containers_together_have_a_bound_and_are_served_again_below_it(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod may have many containers, each with a socket of its own."""
    socket_site = make(container=4, overall=8)
    greedy = [f"{number:020}" for number in range(5)]
    for digest in greedy:
        socket_site.listen(digest)
    idle = [socket_site.connect(digest) for digest in greedy for _ in range(4)]
    try:
        eventually(lambda: socket_site.upstream.open == 8, "the bound for all is reached")
        with socket_site.connect(T1) as refused:
            assert ended(refused)
        assert socket_site.upstream.open == 8
        reasons = {str(vars(each).get("reason")) for each in caplog.records}
        assert "0 of this container, 8 of all" in reasons
    finally:
        for each in idle:
            each.close()
    eventually(lambda: socket_site.serves(T1), "it is served once they have closed")


def test_connections_that_come_too_fast_wait_in_their_own_queue(make: Make) -> None:
    """Opened and closed at once they cost no more than so many a second."""
    socket_site = make(burst=3, per_second=0.001)
    assert [socket_site.serves(each) for each in (T1, T1, T1, T2)] == [True] * 4
    with socket_site.connect(T1) as waiting:
        waiting.settimeout(0.1)
        with pytest.raises(TimeoutError):
            socket_site.peer(waiting)


def test_waiting_calls_are_served_in_order(make: Make) -> None:
    socket_site = make(burst=1, per_second=20)
    assert [socket_site.serves(T1) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize(("files", "overall"), [(-1, 256), (1 << 20, 256), (1024, 128), (4, 1)])
def test_connections_leave_descriptors_to_the_rest_of_the_agent(files: int, overall: int) -> None:
    budget = ConnectionBudget.affordable(files)
    assert budget == ConnectionBudget(overall=overall)


def test_a_silent_peer_is_disconnected(make: Make) -> None:
    socket_site = make(seconds=0.2)
    assert socket_site.hangs_up(T1)
    eventually(lambda: socket_site.upstream.open == 0, "the upstream is disconnected")
    (socket_site.folder / "up.sock").unlink()  # nor is a peer kept without a server
    assert socket_site.hangs_up(T1)


def test_stopping_ends_connections_and_sockets(make: Make) -> None:
    socket_site = make(last_seconds=0)
    with socket_site.connect(T1) as connection:
        socket_site.peer(connection)
        socket_site.server.stop()
        assert ended(connection)
    with pytest.raises(ConnectionRefusedError):
        socket_site.connect(T1)
    folder = os.open(socket_site.folder, os.O_RDONLY)
    socket_site.server.open(T2, folder)  # too late: nothing is listened at
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder)
    socket_site.server.stop()


def test_a_peer_gets_its_response_before_the_server_stops(make: Make) -> None:
    """vcuda-controller's client tries once: without a response it ends its program."""
    socket_site = make(last_seconds=DEADLINE_S)
    connection = socket_site.connect(T1)
    socket_site.peer(connection)
    socket_site.upstream.hold.clear()
    connection.sendall(b"hello again")
    stopping = threading.Thread(target=socket_site.server.stop)
    stopping.start()

    def refused() -> bool:
        try:
            socket_site.connect(T1).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually(refused, "no other peer is let in")
    socket_site.upstream.hold.set()
    assert receive(connection, 11) == b"hello again"
    connection.close()
    stopping.join()
    assert not socket_site.server.alive


def test_an_unforeseen_error_ends_that_connection_alone(make: Make) -> None:
    """A container that brings one about must not end the agent."""
    pids = []

    def identify(pid: int) -> ContainerCgroup | None:
        pids.append(pid)
        if len(pids) == 1:
            raise RuntimeError("unforeseen")
        return of_pid(pid)

    socket_site = make(identify)
    assert socket_site.hangs_up(T1)
    assert socket_site.serves(T1)


def test_a_server_out_of_descriptors_serves_once_it_has_some(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket_site = make(per_second=100)
    real, failed = socket.socket.accept, threading.Event()

    def accept(listener: socket.socket) -> object:
        if threading.current_thread().name != "vcuda-sockets" or failed.is_set():
            return real(listener)
        failed.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    assert socket_site.serves(T1)
    assert failed.is_set()


_CONNECT = "import socket, sys; c = socket.socket(1); c.connect(sys.argv[1]); sys.stdin.read()"


def test_a_process_that_ended_meanwhile_is_refused(socket_site: SocketSite) -> None:
    """Its ID may be another's by then: what was read about that is not believed."""
    path = socket_site.folder / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        socket_site.listen(T1)
        (at,) = socket_site.server.sockets()
        with subprocess.Popen(
            [sys.executable, "-S", "-c", _CONNECT, str(path)], stdin=subprocess.PIPE
        ) as child:
            accepted, _ = listener.accept()

            def identify(pid: int) -> ContainerCgroup:
                child.kill()
                child.wait(DEADLINE_S)
                return of_pid(pid)

            with accepted:
                assert identify_peer(at, accepted, of_pid) is not None
                assert identify_peer(at, accepted, identify) is None  # it ends meanwhile
                assert identify_peer(at, accepted, of_pid) is None


def test_a_process_is_identified_by_its_start_time(tmp_path: Path) -> None:
    assert read_start_time(7, proc=tmp_path) == ""
    (tmp_path / "7").mkdir()
    rest = "0 " * 18
    for text, started in (
        (f"7 (a) b (c) S {rest}100 0 0\n", "100"),
        (f"7 (a) b (c) Z {rest}100 0 0\n", ""),
        ("7 (cut", ""),
    ):
        (tmp_path / "7" / "stat").write_text(text)
        assert read_start_time(7, proc=tmp_path) == started


def test_a_process_of_a_foreign_pid_namespace_is_refused_with_a_remedy(
    socket_site: SocketSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unseen = SimpleNamespace(size=socket_server._UCRED.size, unpack=lambda _raw: (0, 0, 0))
    monkeypatch.setattr(socket_server, "_UCRED", unseen)
    socket_site.listen(T1)
    assert socket_site.hangs_up(T1)
    assert any("its pod needs hostPID: true" in r.getMessage() for r in caplog.records)
    assert socket_site.upstream.peers == []


@pytest.mark.parametrize("problem", [CgroupError("two containers"), Unavailable("no /proc")])
def test_a_container_that_cannot_be_identified_is_none(make: Make, problem: Exception) -> None:
    socket_site = make(raising(problem))
    with socket_site.connect(T1) as connection:
        peer = socket_site.server.peer(socket_site.peer(connection))
        assert peer is not None
        assert peer.container is None
