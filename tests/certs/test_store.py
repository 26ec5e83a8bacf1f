import os
import stat
from pathlib import Path

import pytest

from certs import store
from certs.errors import StoreError
from certs.issue import Issued

NAMES = ["ca.crt", "ca.key", "tls.crt", "tls.key"]


def test_a_key_is_private_from_the_moment_its_file_exists(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the most careless umask, each file is looked at while it is still empty."""
    seen: dict[str, int] = {}
    real_open = os.open

    def spy(path: str | Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(path, flags, mode)
        status = os.fstat(descriptor)
        assert status.st_size == 0
        seen[Path(path).name] = stat.S_IMODE(status.st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        store.write(tmp_path, issued)
    finally:
        os.umask(before)
    modes = (0o644, 0o600, 0o644, 0o600)
    assert seen == {f".{name}.new": mode for name, mode in zip(NAMES, modes, strict=True)}


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
    (out / ".tls.key.new").touch()  # what a writer that was killed left
    store.write(out, issued, force=True)
    assert elsewhere.read_bytes() == b"mine"
    assert not (out / "tls.key").is_symlink()
    assert sorted(path.name for path in out.iterdir()) == NAMES


def test_a_path_that_is_no_directory_is_one_clear_error(issued: Issued, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StoreError) as caught:
        store.write(path, issued)
    assert str(caught.value) == f"{path}: File exists"
