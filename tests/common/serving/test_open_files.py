"""How many connections a worker may hold."""

import pytest

from common.serving.master import open_files


@pytest.mark.parametrize(
    ("limits", "wanted", "raised", "held"),
    [
        ((1024, 4096), 500, None, 500),
        ((1024, 4096), 1000, (1064, 4096), 1000),
        ((1024, 4096), 5000, (4096, 4096), 4032),
        ((1024, -1), 5000, (5064, -1), 5000),
        ((32, 32), 5000, (32, 32), 1),
    ],
)
def test_no_more_connections_are_held_than_there_may_be_open_files(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    wanted: int,
    raised: tuple[int, int] | None,
    held: int,
) -> None:
    state = [limits]
    monkeypatch.setattr("resource.getrlimit", lambda _: state[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, new: state.append(new))
    assert open_files(wanted) == held
    assert state[1:] == ([] if raised is None else [raised])
