"""A small file that survives the agent."""

import errno
import os
from pathlib import Path

import pytest

from agent.host.state_file import StateFile
from tests.agent.builders import raising

NOT_WRITTEN = "state file cannot be written"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "current-pod.json"


def test_the_next_agent_reads_the_last_saved_text(path: Path) -> None:
    """An open old file stays whole, and an agent that is killed while it writes changes nothing."""
    file = StateFile(path)
    assert file.load() == ""
    before = os.umask(0)
    try:
        file.save("old, and longer")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(encoding="utf-8") as reader:
        file.save("new")
        assert reader.read() == "old, and longer"
    path.with_name(f".{path.name}.new").write_text("half of the ne", encoding="utf-8")
    assert StateFile(path).load() == "new"
    file.save("newer")
    assert file.load() == "newer"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None], ids=["not UTF-8", "a folder"])
def test_an_unreadable_file_is_logged_and_ignored(
    path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert StateFile(path).load() == ""
    assert caplog.messages == ["state file cannot be read"]


def test_a_link_instead_of_the_file_is_replaced_and_one_beside_it_is_not_followed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = path.parent / "other"
    other.write_text("of another program", encoding="utf-8")
    path.symlink_to(other)
    file = StateFile(path)
    file.save("ours")
    assert file.load() == "ours"
    assert not path.is_symlink()
    path.with_name(f".{path.name}.new").symlink_to(other)
    file.save("ours again")
    assert NOT_WRITTEN in caplog.messages
    assert other.read_text(encoding="utf-8") == "of another program"


def test_a_full_disk_is_logged_once_and_leaves_no_outdated_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    file = StateFile(path)
    file.save("old")
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        for text in ("new", "newer"):
            file.save(text)
    assert caplog.messages == [NOT_WRITTEN]
    assert vars(caplog.records[0])["reason"] == "[Errno 28] No space left on device"
    assert not path.exists()
    file.save("again")
    assert file.load() == "again"
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        file.save("lost")
    assert caplog.messages == [NOT_WRITTEN] * 2
