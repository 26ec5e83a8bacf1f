"""A socket, and what it lends."""

import errno
import os
from pathlib import Path

import pytest

from agent.enforcement.vcuda.ticket_sockets import TicketSocket, listen, socket_identity
from agent.errors import EnforcementError
from tests.agent.enforcement.vcuda.relay_site import T1
from tests.agent.fakes import short_dir


def test_a_lent_folder_outlives_its_socket(folder: Path) -> None:
    ticket_socket = TicketSocket(T1, os.open(folder, os.O_RDONLY))
    with ticket_socket.folder() as lent:
        ticket_socket.close()
        ticket_socket.close()
        assert os.fstat(lent).st_ino == folder.stat().st_ino


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


def test_a_closed_socket_lends_nothing_and_says_why(folder: Path) -> None:
    ticket_socket = TicketSocket(T1, os.open(folder, os.O_RDONLY))
    with ticket_socket.lent() as lent:
        assert os.fstat(lent).st_ino == folder.stat().st_ino
    ticket_socket.close()
    with pytest.raises(EnforcementError, match="ticket has ended"), ticket_socket.lent():
        pytest.fail("it is closed")


def test_without_descriptors_nothing_is_lent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket_socket = TicketSocket(T1, os.open(folder, os.O_RDONLY))

    def fails(_folder: int) -> int:
        raise OSError(errno.EMFILE, "too many")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fails)
        with pytest.raises(EnforcementError) as error, ticket_socket.lent():
            pytest.fail("there is none")
    assert str(error.value) == "state-dir: cannot be opened: Too many open files"
    ticket_socket.close()
