"""The sockets of containers: made, made again, replaced; and their directories, lent."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.errors import EnforcementError
from tests.agent.builders import raising
from tests.agent.enforcement.vcuda.socket_site import T1, SocketSite, receive
from tests.agent.fakes import DEADLINE_S


def test_every_user_may_connect_to_the_socket_whatever_the_umask(
    socket_site: SocketSite,
) -> None:
    before = os.umask(0o777)
    try:
        path = socket_site.listen(T1) / "vcuda.sock"
    finally:
        os.umask(before)
    status = path.lstat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o666
    assert [each.name for each in path.parent.iterdir()] == ["vcuda.sock"]


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


@pytest.mark.parametrize("how", ["removed", "replaced by a link"])
def test_a_socket_that_vanished_is_made_again(socket_site: SocketSite, how: str) -> None:
    path = socket_site.listen(T1) / "vcuda.sock"
    path.unlink()
    if how == "replaced by a link":
        path.symlink_to("/dev/null")
    socket_site.listen(T1)
    assert stat.S_ISSOCK(path.lstat().st_mode)
    with socket_site.connect(T1) as connection:
        assert socket_site.peer(connection)


def test_a_directory_without_a_working_socket_is_reported(
    socket_site: SocketSite, folder: Path
) -> None:
    file = folder / "file"
    file.touch()
    taken = os.open(file, os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        socket_site.server.open(T1, taken)
    assert socket_site.server.sockets() == ()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken)
    path = socket_site.listen(T1)
    gone = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    (path / "vcuda.sock").unlink()
    path.rmdir()
    with pytest.raises(FileNotFoundError):
        socket_site.server.open(T1, gone)


def test_a_socket_that_cannot_be_created_again_is_reported(
    socket_site: SocketSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that starts must not go without, only because it has had a socket before."""
    path = socket_site.listen(T1)

    (path / "vcuda.sock").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(
            "agent.enforcement.vcuda.container_socket._listen",
            raising(OSError(errno.ENOSPC, "no space")),
        )
        with pytest.raises(OSError, match="no space"):
            socket_site.listen(T1)
    socket_site.listen(T1)
    with socket_site.connect(T1) as connection:
        assert socket_site.peer(connection)


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
        assert os.fstat(lent).st_ino == folder.stat().st_ino
    with pytest.raises(EnforcementError, match="directory is not in use any more"), at.folder():
        pytest.fail("it is closed")
