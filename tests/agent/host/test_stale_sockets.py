"""Sockets that killed processes left."""

import socket
from pathlib import Path

import pytest

from agent.host import stale_sockets as deadsockets
from agent.host.stale_sockets import remove_dead


def bind(path: Path, *, listening: bool) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    if listening:
        made.listen()
    return made


def test_sockets_that_nobody_listens_at_are_removed_once_they_are_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind(folder / "vcore-1.sock", listening=False).close()
    bind(folder / "other.sock", listening=False).close()
    (folder / "vcore-file.sock").touch()
    alive = bind(folder / "vcore-2.sock", listening=True)
    remove_dead(folder, ["vcore*.sock"])
    assert (folder / "vcore-1.sock").exists()  # it may have been bound just now
    monkeypatch.setattr(deadsockets, "_YOUNG_SECONDS", -1)
    remove_dead(folder, ["vcore*.sock"])
    assert {each.name for each in folder.iterdir()} == {
        "other.sock",
        "vcore-2.sock",
        "vcore-file.sock",
    }
    alive.close()


def test_a_folder_that_is_not_there_has_none(folder: Path) -> None:
    remove_dead(folder / "nowhere", ["*"])
    assert not (folder / "nowhere").exists()
