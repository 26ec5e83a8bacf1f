"""Which names on the disk are ours, and what a disk that does not let us has us say."""

import errno
import os
from pathlib import Path

import pytest

from agent.enforcement.ticket_disk import (
    FILES,
    create,
    is_leftover,
    is_name,
    move_away,
    owner_of,
    translated,
)
from agent.errors import EnforcementError
from tests.agent.builders import pod_id

DIGEST = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("name", "ticket", "leftover"),
    [
        (DIGEST, True, False),
        (f".new-{DIGEST}", False, True),
        (f".gone-{DIGEST}-0", False, True),
        (f".gone-{DIGEST}-123456789", False, True),
        (f".gone-{DIGEST}", False, False),
        (f".gone-{DIGEST}-", False, False),
        (f".new-{DIGEST}\n", False, False),
        (f"{DIGEST}\n", False, False),
        (DIGEST.upper(), False, False),
        (DIGEST[:-1], False, False),
        ("..", False, False),
        ("", False, False),
        ("lost+found", False, False),
    ],
)
def test_names_are_ours_or_left_alone(name: str, ticket: bool, leftover: bool) -> None:
    assert is_name(name) is ticket
    assert is_leftover(name) is leftover


def test_what_is_moved_away_keeps_its_inode_and_gets_a_name_of_its_own(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    made = []
    for name in ("a", "b", "c"):
        create(root, DIGEST, pod_id(name))
        assert owner_of(root, DIGEST) == pod_id(name)
        made.append((tmp_path / DIGEST / FILES).stat().st_ino)
    move_away(root, DIGEST)
    move_away(root, DIGEST)  # there is none
    os.close(root)
    gone = [tmp_path / f".gone-{DIGEST}-{number}" for number in range(3)]
    assert [(each / FILES).stat().st_ino for each in gone] == made
    assert sorted(tmp_path.iterdir()) == gone


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.EROFS, "secret", "/secret"),
            (
                "state-dir: cannot write: Read-only file system: the node's admin must put it on a "
                "file system that can be written"
            ),
        ),
        (
            OSError(errno.EIO, "secret", "/secret"),
            "state-dir: cannot write: Input/output error: the agent's log tells more",
        ),
        (
            OSError("secret"),
            "state-dir: cannot write: it did not work: the agent's log tells more",
        ),
    ],
)
def test_a_pods_author_is_told_without_paths_and_the_log_with(
    error: OSError, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EnforcementError) as told, translated("write"):
        raise error
    assert str(told.value) == text
    assert "secret" in caplog.records[-1].__dict__["reason"]
