"""The load beside which ``make test-storm`` runs the tests."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import storm


def _children() -> set[str]:
    found = Path("/proc/self/task").glob("*/children")
    return {pid for each in found for pid in each.read_text().split()}


def test_the_load_ends_with_the_run() -> None:
    before = _children()
    with storm.load_of(3):
        assert len(_children() - before) == 3
    assert _children() <= before


@pytest.mark.slow
def test_the_first_failure_ends_the_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run passes, the next one fails, and there is no third."""
    monkeypatch.setattr(storm, "ROOT", tmp_path)
    (tmp_path / "test_once.py").write_text(
        "from pathlib import Path\ndef test_once():\n    Path('run').touch(exist_ok=False)\n"
    )
    options = ["--load", "1", "--runs", "3", "-n0", "--rootdir", str(tmp_path), "test_once.py"]
    result = CliRunner().invoke(storm.main, options)
    assert result.exit_code == 1
    assert [line.split(" after")[0] for line in result.output.splitlines()] == [
        "run 1 of 3 beside 1 processes: passed",
        "run 2 of 3 beside 1 processes: failed, see above",
    ]
