import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs import store
from certs.errors import InvalidCertificate, StoreError
from certs.issue import Issued, issue
from certs.names import parse_subject

NAMES = ["ca.crt", "ca.key", "tls.crt", "tls.key"]


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def newer() -> Issued:
    return issue(parse_subject(["newer"], [], 1), now=datetime.now(UTC))


def test_a_key_is_private_from_the_moment_its_file_exists(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the most careless umask, each file is looked at while it is still empty."""
    seen: dict[str, int] = {}
    real_open = os.open

    def spy(path: str | Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(path, flags, mode)
        if flags & os.O_CREAT:
            status = os.fstat(descriptor)
            assert status.st_size == 0
            seen[Path(path).name] = stat.S_IMODE(status.st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        store.write(tmp_path, issued, entropy=lambda: "x")
    finally:
        os.umask(before)
    assert seen == {
        ".ca.crt.x.certs-tmp": 0o644,
        ".ca.key.x.certs-tmp": 0o600,
        ".tls.crt.x.certs-tmp": 0o644,
        ".tls.key.x.certs-tmp": 0o600,
    }


def test_a_dangling_link_counts_as_there(issued: Issued, tmp_path: Path) -> None:
    (tmp_path / "tls.key").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"already has tls\.key"):
        store.write(tmp_path, issued)


def test_force_replaces_a_link_and_not_the_file_it_points_to(
    issued: Issued, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "tls.key").symlink_to(elsewhere)
    store.write(out, issued, force=True)
    assert elsewhere.read_bytes() == b"mine"
    assert not (out / "tls.key").is_symlink()


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_write_that_fails_changes_nothing_and_leaves_nothing(
    issued: Issued, newer: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A disk that is full at the first, second, third or fourth file."""
    store.write(tmp_path, issued)
    before = _contents(tmp_path)
    calls = 0
    real_fsync = os.fsync

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(28, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.write(tmp_path, newer, force=True)
    assert _contents(tmp_path) == before


def test_all_contents_are_on_disk_before_the_first_name_changes(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("sync")
        real_fsync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    store.write(tmp_path, issued)
    assert steps == ["sync"] * 4 + ["rename"] * 4 + ["sync"]


def test_what_a_killed_writer_left_is_swept_away(issued: Issued, tmp_path: Path) -> None:
    (tmp_path / ".tls.key.0123.certs-tmp").write_bytes(b"half")
    store.write(tmp_path, issued)
    assert list(_contents(tmp_path)) == NAMES


def test_two_writers_never_mix_their_files(issued: Issued, newer: Issued, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=store.write, args=(tmp_path, each), kwargs={"force": True})
        for each in (issued, newer) * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = _contents(tmp_path)
    assert (found["tls.crt"], found["tls.key"]) in {
        (each.serving.certificate, each.serving.key) for each in (issued, newer)
    }


def test_a_place_that_is_no_directory_is_one_clear_error(issued: Issued, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(StoreError) as caught:
        store.write(place, issued)
    assert str(caught.value) == f"{place}: File exists"


def test_a_directory_in_the_place_of_a_file_is_refused_even_with_force(
    issued: Issued, tmp_path: Path
) -> None:
    (tmp_path / "tls.key").mkdir()
    with pytest.raises(StoreError, match=r"tls\.key: is a directory$"):
        store.write(tmp_path, issued, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["tls.key"]


def test_a_bundle_that_is_none_is_refused_with_its_path(issued: Issued, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    with pytest.raises(StoreError) as missing:
        store.read_ca_bundle(tmp_path)
    assert str(missing.value) == f"{path}: No such file or directory"
    path.write_bytes(b"junk")
    with pytest.raises(InvalidCertificate) as junk:
        store.read_ca_bundle(tmp_path)
    assert str(junk.value) == f"{path}: not a PEM certificate"


def test_four_files_are_written_into_a_directory_made_for_them(
    issued: Issued, tmp_path: Path
) -> None:
    store.write(tmp_path / "a" / "b", issued)
    assert list(_contents(tmp_path / "a" / "b")) == NAMES
