"""Directories of containers on a real disk, killed at every step, and with links in them."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.container_dirs import ContainerDir, ContainerDirs
from agent.enforcement.container_disk import decode_owner
from agent.errors import EnforcementError
from agent.holdings.holding import make_key
from placement.pods import PodId
from tests.agent.builders import pod_id, raising
from tests.agent.killing import killed

KEY, OTHER_KEY = make_key("a"), make_key("b")
A, B = pod_id("a"), pod_id("b")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tickets"


@pytest.fixture
def dirs(root: Path) -> ContainerDirs:
    return ContainerDirs(root)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "data",
    [
        b'{"name": "a", "namesp',
        b"[]",
        b'{"namespace": "n", "name": "a", "uid": "u", "more": ""}',
        b'{"namespace": "n", "name": "a"}',
        b'{"namespace": "n", "name": "a", "uid": 1}',
        b'{"namespace": "n", "name": "", "uid": "u"}',
        b"\xff\xfe",
    ],
)
def test_an_owner_reference_that_does_not_parse_is_ignored(data: bytes) -> None:
    assert decode_owner(data) is None


def test_a_directory_can_be_read_by_a_container_and_written_by_root_alone(
    dirs: ContainerDirs, root: Path
) -> None:
    before = os.umask(0o777)
    try:
        made = dirs.make(KEY, A)
    finally:
        os.umask(before)
    assert made == ContainerDir(KEY, A, root / KEY / "files")
    modes = {str(path.relative_to(root)): mode(path) for path in root.rglob("*")}
    assert modes == {KEY: 0o711, f"{KEY}/files": 0o755, f"{KEY}/owner.json": 0o600}
    assert json.loads((root / KEY / "owner.json").read_text()) == A._asdict()


@pytest.mark.parametrize("again", [ContainerDirs.make, ContainerDirs.ensure])
def test_another_pod_finds_a_fresh_directory_and_a_lingering_container_keeps_its_own(
    dirs: ContainerDirs, again: Callable[..., ContainerDir]
) -> None:
    made = dirs.make(KEY, A)
    (made.files / "secret").write_text("of a")
    mounted = os.open(made.files, os.O_RDONLY)  # as a bind mount, it follows the inode
    fresh = again(dirs, KEY, B)
    assert fresh.files == made.files
    assert names(fresh.files) == []
    (fresh.files / "secret").write_text("of b")
    assert next(os.scandir(mounted), None) is None
    with pytest.raises(FileNotFoundError):
        os.open("secret", os.O_RDONLY, dir_fd=mounted)
    os.close(mounted)


NAMELESS = pod_id("a", "")


@pytest.mark.parametrize(
    ("owner", "pod", "kept"),
    [
        (A, A, True),
        (A, B, False),
        (A, pod_id("a", "another"), False),
        (A, NAMELESS, True),
        (NAMELESS, A, True),
        (A, pod_id("a", namespace="elsewhere"), False),
    ],
)
def test_a_directory_is_kept_for_every_container_it_may_belong_to(
    dirs: ContainerDirs, owner: PodId, pod: PodId, kept: bool
) -> None:
    made = dirs.make(KEY, owner)
    assert dirs.prune([pod, B._replace(name="c")]) == ((made,) if kept else ())
    assert dirs.all() == ((made,) if kept else ())


@pytest.mark.parametrize(
    ("call", "first", "second", "owner"),
    [
        (ContainerDirs.make, "u", "u", "u"),
        (ContainerDirs.make, "", "", None),  # an admission keeps what was surely made for it
        (ContainerDirs.ensure, "", "u", "u"),  # and a start what may have been
        (ContainerDirs.ensure, "u", "", "u"),
        (ContainerDirs.ensure, "", "", ""),
    ],
)
def test_a_pod_of_the_same_name_finds_its_own_files(
    *, dirs: ContainerDirs, call: Callable[..., ContainerDir], first: str, second: str, owner: str
) -> None:
    made = dirs.make(KEY, pod_id("a", first))
    (made.files / "kept").touch()
    found = call(dirs, KEY, pod_id("a", second))
    assert names(found.files) == ([] if owner is None else ["kept"])
    assert dirs.find(KEY) == found == replace(made, owner=pod_id("a", owner or ""))


def test_correcting_the_owner_of_a_directory_that_was_replaced_leaves_its_successor_alone(
    dirs: ContainerDirs,
) -> None:
    """A container that lingers may be proven when its slots are another pod's already."""
    made = dirs.make(KEY, A)
    folder = dirs.open(made.digest)
    dirs.make(KEY, B)
    dirs.correct_owner(made.digest, folder, A)
    os.close(folder)
    assert dirs.find(KEY) == ContainerDir(made.digest, B, made.files)


def test_leftovers_are_cleaned_and_other_files_left_alone(dirs: ContainerDirs, root: Path) -> None:
    made = dirs.make(KEY, A)
    digest = OTHER_KEY
    for name in (f".new-{digest}", f".gone-{digest}-0", f".gone-{digest}-123456789"):
        (root / name / "files").mkdir(parents=True)
    (root / digest).mkdir()  # no owner, no files
    (root / ("f" * 20)).touch()
    (root / "notes.txt").touch()
    others = [
        "lost+found",
        digest.upper(),
        digest[:-1],
        f"{digest}\n",
        f".new-{digest}\n",
        *(f".gone-{digest}{end}" for end in ("", "-", "-x", "-1234567890")),
    ]
    for name in others:
        (root / name / "files").mkdir(parents=True)
    dirs.clean()
    assert names(root) == sorted([*others, made.digest, "notes.txt"])


@pytest.mark.parametrize("call", [ContainerDirs.make, ContainerDirs.ensure])
@pytest.mark.parametrize("where", ["", "files", "owner.json"])
def test_a_link_instead_of_our_directory_is_replaced_and_never_followed(
    dirs: ContainerDirs, root: Path, tmp_path: Path, where: str, call: Callable[..., ContainerDir]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "files").mkdir(parents=True)
    (elsewhere / "owner.json").write_text(json.dumps(A._asdict()))
    (elsewhere / "files" / "precious").touch()
    made = dirs.make(KEY, A)
    trap = root / made.digest / where if where else root / made.digest
    if trap.is_dir():
        shutil.rmtree(trap)
    else:
        trap.unlink()
    trap.symlink_to(elsewhere / where)
    with pytest.raises(EnforcementError, match="is missing"):
        dirs.open(made.digest)
    assert call(dirs, KEY, A) == made
    assert not trap.is_symlink()
    assert names(made.files) == []
    assert (elsewhere / "files" / "precious").exists()
    assert names(root) == [made.digest]


def test_a_linked_folder_is_not_written_into(dirs: ContainerDirs, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("..", "../x"):  # only names of ours are opened
        with pytest.raises(EnforcementError, match="is missing"):
            dirs.open(name)
    made = dirs.make(KEY, A)
    (made.files / "id").symlink_to(elsewhere)
    folder = dirs.open(made.digest)
    with pytest.raises(EnforcementError, match=r"^state-dir: cannot write the limits"):
        dirs.write(folder, "id", {"f": b""})
    dirs.discard(folder, ["id", "there-is-none"])
    os.close(folder)
    assert names(made.files) == []
    assert elsewhere.is_dir()
    assert names(elsewhere) == []


STEPS = ("open", "mkdir", "rename", "write", "fchmod", "stat", "scandir", "unlink", "rmdir")


@pytest.mark.parametrize(
    ("number", "step", "message"),
    [
        (errno.ENOSPC, "mkdir", "the node's admin must free space there"),
        (errno.EROFS, "write", "the node's admin must move it to a writable file system"),
        (errno.EIO, "write", "see the agent's log"),
    ],
)
def test_a_disk_error_is_reported_on_one_line(
    *, dirs: ContainerDirs, monkeypatch: pytest.MonkeyPatch, number: int, step: str, message: str
) -> None:
    kept = dirs.make(OTHER_KEY, B)
    with monkeypatch.context() as patch:
        patch.setattr(os, step, raising(OSError(number, os.strerror(number), "path")))
        with pytest.raises(EnforcementError) as error:
            dirs.make(KEY, A)
    assert str(error.value) == (
        "state-dir: cannot make the directory of a container's limits: "
        f"{os.strerror(number)}: {message}"
    )
    assert dirs.all() == (kept,)  # nothing is lost
    assert dirs.make(KEY, A).owner == A


def in_folder(act: Callable[[ContainerDirs, int], None]) -> Callable[[ContainerDirs], None]:
    def run(dirs: ContainerDirs) -> None:
        folder = dirs.open(KEY)
        try:
            act(dirs, folder)
        finally:
            os.close(folder)

    return run


NEW = {"pids.config": b"new", "vcuda.config": b"new"}


@pytest.mark.parametrize(
    "act",
    [
        lambda dirs: dirs.make(KEY, B),
        in_folder(lambda dirs, folder: dirs.write(folder, "id", NEW)),
        in_folder(lambda dirs, folder: dirs.correct_owner(KEY, folder, B)),
        lambda dirs: dirs.prune([B]),
    ],
)
def test_the_next_agent_repairs_a_kill_at_any_step(
    tmp_path: Path, act: Callable[[ContainerDirs], None]
) -> None:
    """The states in between are a whole directory of one pod or the other, or none."""
    for at in range(1000):
        root = tmp_path / str(at)
        before = ContainerDirs(root)
        made, other = before.make(KEY, A), before.make(OTHER_KEY, B)
        (made.files / "id").mkdir()
        (made.files / "id" / "pids.config").write_bytes(b"old")
        died = killed(at, STEPS, partial(act, ContainerDirs(root)))
        after = ContainerDirs(root)
        after.clean()
        assert set(names(root)) <= {made.digest, other.digest}
        held = after.find(KEY)
        assert held is None or held.owner in {A, B}
        if held is not None and (made.files / "id").exists():
            files = {"pids.config", "vcuda.config"}
            assert set(names(made.files / "id")) <= {*files, *(f".{each}.new" for each in files)}
            assert (made.files / "id" / "pids.config").read_bytes() in {b"old", b"new"}
        assert after.find(OTHER_KEY) == other
        for pod in (B, A):
            fresh = after.ensure(KEY, pod)
            assert fresh == ContainerDir(made.digest, pod, made.files)
        assert names(made.files) == []
        assert mode(made.files) == 0o755
        assert names(root) == sorted([made.digest, other.digest])
        if not died:
            assert at > 3
            return
    pytest.fail("no end")


def test_a_leftover_that_cannot_be_removed_is_no_refusal(
    dirs: ContainerDirs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs.make(KEY, A)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", raising(OSError(errno.EBUSY, "busy")))
        for pod in (B, A, B):
            assert dirs.make(KEY, pod).owner == pod
        assert len(names(root)) == 4
    dirs.clean()
    assert names(root) == [KEY]


@pytest.mark.parametrize(
    ("call", "owned"),
    [
        pytest.param(lambda dirs: dirs.prune([]), True, id="prune"),
        pytest.param(ContainerDirs.clean, False, id="clean"),
    ],
)
def test_a_directory_that_cannot_be_moved_keeps_no_other_one(
    *,
    call: Callable[[ContainerDirs], object],
    owned: bool,
    dirs: ContainerDirs,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, *others = sorted(dirs.make(make_key(each), A).digest for each in "abc")
    if not owned:
        for each in (stuck, *others):
            (root / each / "owner.json").unlink()
    rename = os.rename

    def fail(source: str, *rest: Any, **more: Any) -> None:
        if source == stuck:
            raise OSError(errno.EXDEV, "cross-device")
        rename(source, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        call(dirs)
    assert names(root) == [stuck]
    assert caplog.messages.count("container directories not removed") == 1
    call(dirs)
    assert names(root) == []


def test_an_owner_that_cannot_be_read_is_an_error(
    dirs: ContainerDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dirs.make(KEY, A)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", raising(OSError(errno.EIO, "broken")))
        for call in (dirs.clean, dirs.all, lambda: dirs.prune([]), lambda: dirs.make(KEY, B)):
            with pytest.raises(EnforcementError, match="Input/output error"):
                call()
    assert dirs.all() == (made,)
