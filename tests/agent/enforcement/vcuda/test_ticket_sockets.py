"""A socket, and what it lends."""

import errno
import os
from pathlib import Path

import pytest

from agent.enforcement.vcuda.ticket_sockets import TicketSocket, listen, socket_identity
from agent.errors import EnforcementError
from tests.agent.enforcement.vcuda.relay_site import T1


def test_what_is_no_socket_has_no_identity(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    assert socket_identity(opened) is None
    (folder / "vcuda.sock").write_text("")
    assert socket_identity(opened) is None
    made, identity = listen(opened)
    assert socket_identity(opened) == identity is not None
    made.close()
    os.close(opened)


def test_a_lent_folder_outlives_its_socket_which_then_lends_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket_socket = TicketSocket(T1, os.open(folder, os.O_RDONLY))

    def fails(_folder: int) -> int:
        raise OSError(errno.EMFILE, "too many")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fails)
        with pytest.raises(EnforcementError) as error, ticket_socket.lent():
            pytest.fail("there is none")
    assert str(error.value) == "state-dir: cannot be opened: Too many open files"
    with ticket_socket.lent() as lent:
        ticket_socket.close()
        ticket_socket.close()
        assert os.fstat(lent).st_ino == folder.stat().st_ino
    with pytest.raises(EnforcementError, match="ticket has ended"), ticket_socket.lent():
        pytest.fail("it is closed")
