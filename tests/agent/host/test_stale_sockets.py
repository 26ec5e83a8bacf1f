"""Sockets that killed processes left."""

import socket
import time
from pathlib import Path

import pytest

from agent.host.stale_sockets import remove_dead
from tests.agent.builders import raising


def later() -> float:
    """Return a time at which every process that has bound a socket by now listens on it."""
    return time.time() + 60


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder: its whole path may be too long for a socket."""
    monkeypatch.chdir(tmp_path)


def test_sockets_on_which_no_process_listens_are_removed_once_they_are_old() -> None:
    folder = Path()
    for name in ("vcore-1.sock", "other.sock", "vcore-2.sock"):
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(name)
        if name != "vcore-2.sock":
            bound.close()
    bound.listen()
    (folder / "vcore-file.sock").touch()
    remove_dead(folder, ["vcore*.sock"], unix=lambda: 0.0)
    assert (folder / "vcore-1.sock").exists()  # it may have been bound just now
    remove_dead(folder, ["vcore*.sock"], unix=later)
    remove_dead(folder / "nowhere", ["*"], unix=later)
    left = {each.name for each in folder.iterdir()}
    assert left == {"other.sock", "vcore-2.sock", "vcore-file.sock"}
    bound.close()


def test_a_socket_that_cannot_be_removed_stays_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("a.sock")
    monkeypatch.setattr(Path, "unlink", raising(PermissionError("read-only")))
    remove_dead(Path(), ["*"], unix=later)
    assert caplog.messages == ["socket not removed"]
