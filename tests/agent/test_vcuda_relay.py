"""The relay between real sockets and real processes."""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cgroups import CgroupError, ContainerCgroup
from agent.errors import Unavailable
from agent.vcuda import peers
from agent.vcuda.doors import Door, listen, socket_identity
from agent.vcuda.peers import Presence, peer_pid
from agent.vcuda.relay import Limits, Relay
from tests.agent.fakes import eventually, short_dir

T1, T2 = "1" * 20, "2" * 20


def of_pid(pid: int) -> ContainerCgroup:
    return ContainerCgroup(f"{pid:064x}", None, ())


class Upstream:
    """A server that tells what it is asked: ``<peer's name> <data>``, and the end."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(64)
        self.peers: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.open = 0
        self.most = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, address = self.socket.accept()
                name = bytes(address).lstrip(b"\0").decode()
                self.peers.append(name)
                threading.Thread(target=self._answer, args=(connection, name), daemon=True).start()

    def _answer(self, connection: socket.socket, name: str) -> None:
        with self._lock:
            self.open += 1
            self.most = max(self.most, self.open)
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                self.hold.wait(20)
                connection.sendall(data)
        with self._lock:
            self.open -= 1

    def close(self) -> None:
        self.hold.set()
        self.socket.close()


class Site:
    """A relay that runs, with tickets' directories."""

    def __init__(
        self, folder: Path, limits: Limits, identify: Callable[[int], ContainerCgroup | None]
    ) -> None:
        self.folder = folder
        self.upstream = Upstream(folder / "up.sock")
        self.relay: Relay = Relay(upstream=folder / "up.sock", identify=identify, limits=limits)
        self.thread = threading.Thread(target=self.relay.run, daemon=True)
        self.thread.start()

    def ticket(self, digest: str) -> Path:
        path = self.folder / digest
        path.mkdir(exist_ok=True)
        self.relay.open(digest, os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return path

    def connect(self, digest: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(20)
        try:
            made.connect(str(self.folder / digest / "vcuda.sock"))
        except OSError:
            made.close()
            raise
        return made

    def peer(self, connection: socket.socket, said: bytes = b"hello") -> str:
        """Say something, hear it again, and give how the upstream names us."""
        before = len(self.upstream.peers)
        connection.sendall(said)
        assert _hear(connection, len(said)) == said
        assert len(self.upstream.peers) >= max(before, 1)
        return self.upstream.peers[-1]

    def close(self) -> None:
        self.relay.stop()
        self.thread.join(10)
        self.upstream.close()
        assert not self.thread.is_alive()


def _hear(connection: socket.socket, count: int) -> bytes:
    heard = b""
    while len(heard) < count and (data := connection.recv(count - len(heard))):
        heard += data
    return heard


def ended(connection: socket.socket) -> bool:
    """Whether the other side hangs up."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def make(folder: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def build(
        limits: Limits | None = None,
        identify: Callable[[int], ContainerCgroup | None] = of_pid,
    ) -> Site:
        made.append(Site(folder, limits or Limits(check=0.05), identify))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def site(make: Callable[..., Site]) -> Site:
    return make()


def test_bytes_go_both_ways_and_the_visitor_is_known_by_its_connection(site: Site) -> None:
    site.ticket(T1)
    with site.connect(T1) as connection:
        name = site.peer(connection)
        visitor = site.relay.visitor(f"unix-abstract:{name}")
        assert visitor is not None
        assert visitor.pid == os.getpid()
        assert visitor.container == of_pid(os.getpid())
        assert visitor.door.digest == T1
    eventually(lambda: site.relay.visitor(name) is None, "the visitor is forgotten")
    eventually(lambda: site.upstream.open == 0, "the connection ends on the far side, too")


def test_nobody_is_known_by_a_name_that_is_not_the_relays(site: Site) -> None:
    for name in ("", "unix:", "unix:/x", "unix-abstract:gpu-turnstile-1", "ipv4:127.0.0.1:5"):
        assert site.relay.visitor(name) is None


def test_names_are_never_used_twice_and_doors_are_told_apart(site: Site) -> None:
    for digest in (T1, T2):
        site.ticket(digest)
    seen = set()
    for number in range(20):
        digest = (T1, T2)[number % 2]
        with site.connect(digest) as connection:
            name = site.peer(connection)
            visitor = site.relay.visitor(name)
            assert visitor is not None
            assert visitor.door.digest == digest
            seen.add(name)
    assert len(seen) == 20


def test_a_visitor_that_stops_talking_still_hears_the_answer(site: Site) -> None:
    site.ticket(T1)
    site.upstream.hold.clear()
    with site.connect(T1) as connection:
        connection.sendall(b"question")
        connection.shutdown(socket.SHUT_WR)
        site.upstream.hold.set()
        assert _hear(connection, 100) == b"question"


def test_the_socket_may_be_connected_to_by_anybody_whatever_the_umask(site: Site) -> None:
    before = os.umask(0o777)
    try:
        path = site.ticket(T1) / "vcuda.sock"
    finally:
        os.umask(before)
    status = path.lstat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o666
    assert [each.name for each in path.parent.iterdir()] == ["vcuda.sock"]


def test_a_path_longer_than_a_sockets_is_listened_at(site: Site) -> None:
    """The container's own path to it is short: /etc/vcuda/vcuda.sock."""
    long = site.folder / ("x" * 120)
    long.mkdir()
    folder = os.open(long, os.O_RDONLY | os.O_DIRECTORY)
    site.relay.open(T1, os.dup(folder))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(f"/proc/self/fd/{folder}/vcuda.sock")
        connection.sendall(b"x")
        assert _hear(connection, 1) == b"x"
    os.close(folder)


def test_a_socket_left_by_an_agent_that_was_killed_is_replaced(site: Site) -> None:
    path = site.folder / T1
    path.mkdir()
    for name in ("vcuda.sock", ".vcuda.sock.new"):
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(path / name))
        dead.close()
    site.ticket(T1)
    with site.connect(T1) as connection:
        assert site.peer(connection)
    assert [each.name for each in path.iterdir()] == ["vcuda.sock"]


@pytest.mark.parametrize("how", ["removed", "replaced by a file", "replaced by a link"])
def test_a_socket_that_vanished_is_made_again(site: Site, how: str) -> None:
    path = site.ticket(T1) / "vcuda.sock"
    before = path.lstat().st_ino, path.lstat().st_ctime_ns
    path.unlink()
    if how == "replaced by a file":
        path.write_text("")
    elif how == "replaced by a link":
        path.symlink_to("/dev/null")

    def anew() -> bool:
        with contextlib.suppress(FileNotFoundError):
            now = path.lstat()
            return stat.S_ISSOCK(now.st_mode) and (now.st_ino, now.st_ctime_ns) != before
        return False

    eventually(anew, "the socket is there again")
    with site.connect(T1) as connection:
        assert site.peer(connection)


def test_opening_again_keeps_the_door_and_mends_it(site: Site) -> None:
    path = site.ticket(T1)
    (door,) = site.relay.doors()
    (path / "vcuda.sock").unlink()
    site.ticket(T1)
    assert site.relay.doors() == (door,)
    with site.connect(T1) as connection:
        assert site.peer(connection)


def test_a_replaced_directory_has_another_door_and_the_old_one_is_closed(site: Site) -> None:
    old = site.ticket(T1)
    (door,) = site.relay.doors()
    with site.connect(T1) as lingering:
        site.peer(lingering)
        old.rename(site.folder / "old")
        site.ticket(T1)
        assert ended(lingering)
    (other,) = site.relay.doors()
    assert other is not door
    with pytest.raises(FileNotFoundError), door.folder():
        pytest.fail("it is closed")
    with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as late:
        late.connect(str(site.folder / "old" / "vcuda.sock"))


def test_a_door_whose_directory_was_removed_is_closed(site: Site) -> None:
    path = site.ticket(T1)
    (path / "vcuda.sock").unlink()
    path.rmdir()
    eventually(lambda: site.relay.doors() == (), "the door is closed")


def test_a_closed_door_is_not_listened_at(site: Site) -> None:
    site.ticket(T1)
    site.ticket(T2)
    with site.connect(T1) as connection:
        site.peer(connection)
        site.relay.close(T1)
        site.relay.close("there is none")
        assert ended(connection)
    with pytest.raises(ConnectionRefusedError):
        site.connect(T1)
    with site.connect(T2) as connection:
        assert site.peer(connection)


def test_a_lent_folder_outlives_its_door(folder: Path) -> None:
    door = Door(T1, os.open(folder, os.O_RDONLY))
    with door.folder() as lent:
        door.close()
        door.close()
        assert os.fstat(lent).st_ino == folder.stat().st_ino


def test_a_directory_that_cannot_be_listened_in_is_told(site: Site, folder: Path) -> None:
    file = folder / "file"
    file.touch()
    taken = os.open(file, os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        site.relay.open(T1, taken)
    assert site.relay.doors() == ()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken)


# --- what visitors may use up ---------------------------------------------------------------


def test_a_door_serves_so_many_and_the_next_waits_its_turn(make: Callable[..., Site]) -> None:
    site = make(Limits(door=2, check=0.05))
    site.ticket(T1)
    site.ticket(T2)
    first, second, third = (site.connect(T1) for _ in range(3))
    for each in (first, second, third):
        each.sendall(b"x")
    assert _hear(first, 1) == _hear(second, 1) == b"x"
    third.settimeout(0.2)
    with pytest.raises(TimeoutError):
        third.recv(1)
    with site.connect(T2) as other:  # of another door nobody waits
        assert site.peer(other)
    first.close()
    third.settimeout(20)
    assert _hear(third, 1) == b"x"
    for each in (second, third):
        each.close()
    assert site.upstream.most <= 3


def test_overall_only_so_many_are_served(make: Callable[..., Site]) -> None:
    site = make(Limits(overall=1, check=0.05))
    site.ticket(T1)
    site.ticket(T2)
    first = site.connect(T1)
    site.peer(first)
    with site.connect(T2) as second:
        second.sendall(b"x")
        second.settimeout(0.2)
        with pytest.raises(TimeoutError):
            second.recv(1)
        first.close()
        second.settimeout(20)
        assert _hear(second, 1) == b"x"


def test_a_visitor_that_says_nothing_is_let_go(make: Callable[..., Site]) -> None:
    site = make(Limits(seconds=0.2))
    site.ticket(T1)
    with site.connect(T1) as slow:
        assert ended(slow)
    eventually(lambda: site.upstream.open == 0, "the far side is told")


def test_a_visitor_that_talks_too_much_is_let_go(make: Callable[..., Site]) -> None:
    site = make(Limits(bytes=100_000))
    site.ticket(T1)
    with site.connect(T1) as talker, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(1000):
            talker.sendall(b"x" * 1000)
            talker.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                talker.recv(65536)
            talker.settimeout(20)
        pytest.fail("it may talk without end")


def test_a_visitor_that_does_not_listen_holds_nobody_up(make: Callable[..., Site]) -> None:
    """What it is sent stays with the sender: the relay keeps one piece of it."""
    site = make(Limits(bytes=64 << 20, seconds=60))
    site.ticket(T1)
    site.ticket(T2)
    with site.connect(T1) as deaf:
        deaf.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:
                deaf.send(b"x" * 65536)
        with site.connect(T2) as other:
            assert site.peer(other)


def test_visitors_that_come_too_often_wait_and_are_served(make: Callable[..., Site]) -> None:
    site = make(Limits(burst=3, per_second=50, check=0.05))
    site.ticket(T1)
    began = time.monotonic()
    for _ in range(8):
        with site.connect(T1) as connection:
            site.peer(connection)
    assert time.monotonic() - began > 0.06


def test_a_server_that_is_not_there_ends_the_visit(make: Callable[..., Site]) -> None:
    site = make()
    site.ticket(T1)
    (site.folder / "up.sock").unlink()
    with site.connect(T1) as connection:
        assert ended(connection)
    with site.connect(T1) as connection:
        assert ended(connection)


@pytest.mark.parametrize("problem", [CgroupError("two containers"), Unavailable("no /proc")])
def test_a_container_that_cannot_be_told_is_none(
    make: Callable[..., Site], problem: Exception
) -> None:
    def identify(_pid: int) -> ContainerCgroup | None:
        raise problem

    site = make(identify=identify)
    site.ticket(T1)
    with site.connect(T1) as connection:
        visitor = site.relay.visitor(site.peer(connection))
        assert visitor is not None
        assert visitor.container is None


def test_stopping_ends_connections_and_doors(make: Callable[..., Site]) -> None:
    site = make()
    site.ticket(T1)
    with site.connect(T1) as connection:
        site.peer(connection)
        site.relay.stop()
        assert ended(connection)
    site.thread.join(10)
    with pytest.raises(ConnectionRefusedError):
        site.connect(T1)
    folder = os.open(site.folder, os.O_RDONLY)
    site.relay.open(T2, folder)  # too late: nothing is listened at
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder)
    site.relay.stop()


def test_hundreds_of_doors_are_served_by_one_thread(make: Callable[..., Site]) -> None:
    site = make(Limits(check=5))
    digests = [f"{number:020x}" for number in range(300)]
    for digest in digests:
        site.ticket(digest)
    for digest in digests[::10]:
        with site.connect(digest) as connection:
            visitor = site.relay.visitor(site.peer(connection))
            assert visitor is not None
            assert visitor.door.digest == digest


# --- who it is ------------------------------------------------------------------------------

_CHILD = """
import socket, sys
c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); c.sendall(b"x")
print("said", flush=True); sys.stdin.read()
"""


def test_a_process_of_another_kind_is_told_by_its_pid(site: Site) -> None:
    path = site.ticket(T1) / "vcuda.sock"
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "said\n"
        eventually(lambda: site.upstream.peers, "it was passed on")
        visitor = site.relay.visitor(site.upstream.peers[-1])
        assert visitor is not None
        assert visitor.pid == child.pid
        child.stdin.close()


def test_a_process_that_ended_meanwhile_is_turned_away(folder: Path) -> None:
    """Its ID may be another's by then: what was read about that is not believed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(folder / "s")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            accepted, _ = listener.accept()
            pid = peer_pid(accepted)
            assert pid == child.pid
            with Presence(accepted, pid) as presence:
                assert presence.lasts()
                assert presence.lasts()
                child.kill()
                child.wait(20)
                assert not presence.lasts()
            with Presence(accepted, pid) as late:
                assert not late.lasts()
            accepted.close()


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


def test_a_kernel_that_lost_sight_of_the_process_is_believed(tmp_path: Path) -> None:
    connection: socket.socket = OldKernel(errno.ESRCH)  # type: ignore[assignment] # a fake
    _stat(tmp_path, 100)
    with Presence(connection, 7, proc=tmp_path) as presence:
        assert not presence.lasts()


def test_a_process_of_a_foreign_pid_namespace_is_turned_away_with_what_to_do(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.vcuda.relay.peer_pid", lambda _connection: 0)
    site.ticket(T1)
    with site.connect(T1) as connection:
        assert ended(connection)
    assert any("the agent's pod needs hostPID: true" in r.getMessage() for r in caplog.records)
    assert site.upstream.peers == []


def test_a_visitor_that_is_gone_at_once_is_not_passed_on(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.Presence, "lasts", lambda _self: False)
    site = make()
    site.ticket(T1)
    with site.connect(T1) as connection:
        assert ended(connection)
    assert site.upstream.peers == []


def test_what_is_no_socket_has_no_identity() -> None:
    with short_dir() as folder:
        opened = os.open(folder, os.O_RDONLY)
        assert socket_identity(opened) is None
        (folder / "vcuda.sock").write_text("")
        assert socket_identity(opened) is None
        made, identity = listen(opened)
        assert socket_identity(opened) == identity is not None
        made.close()
        os.close(opened)


def test_a_door_that_cannot_be_mended_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = site.ticket(T1)

    def fails(_folder: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("agent.vcuda.relay.listen", fails)
        (path / "vcuda.sock").unlink()
        eventually(
            lambda: any(r.getMessage() == "cannot listen again" for r in caplog.records), "tried"
        )
    eventually((path / "vcuda.sock").exists, "made again")


def test_a_relay_out_of_descriptors_serves_once_it_has_some(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make(Limits(per_second=100, check=0.05))
    real, failed, relay = socket.socket.accept, threading.Event(), site.thread

    def accept(listener: socket.socket) -> object:
        if threading.current_thread() is not relay or failed.is_set():
            return real(listener)
        failed.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    site.ticket(T1)
    with site.connect(T1) as connection:
        assert site.peer(connection)
    assert failed.is_set()
