"""Sockets that killed processes left."""

import socket
from pathlib import Path

import pytest

from agent.host import stale_sockets
from agent.host.stale_sockets import remove_dead
from tests.agent.builders import raising


def test_sockets_that_nobody_listens_at_are_removed_once_they_are_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vcore-1.sock", "other.sock", "vcore-2.sock"):
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(folder / name))
        if name != "vcore-2.sock":
            bound.close()
    bound.listen()
    (folder / "vcore-file.sock").touch()
    remove_dead(folder, ["vcore*.sock"])
    assert (folder / "vcore-1.sock").exists()  # it may have been bound just now
    monkeypatch.setattr(stale_sockets, "_STARTUP_SECONDS", -1)
    remove_dead(folder, ["vcore*.sock"])
    remove_dead(folder / "nowhere", ["*"])
    left = {each.name for each in folder.iterdir()}
    assert left == {"other.sock", "vcore-2.sock", "vcore-file.sock"}
    bound.close()


def test_a_socket_that_cannot_be_removed_stays_and_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "a.sock"))

    monkeypatch.setattr(stale_sockets, "_STARTUP_SECONDS", -1)
    monkeypatch.setattr(Path, "unlink", raising(PermissionError("read-only")))
    remove_dead(folder, ["*"])
    assert caplog.messages == ["socket not removed"]
