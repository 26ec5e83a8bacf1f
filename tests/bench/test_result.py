"""Results, and how they are printed and written."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench import __main__ as command
from bench.report import Report
from bench.result import Goal, Result, Table

RESULT = Result(
    "colour",
    (Table("Colours", ("name", "ms"), (("red", 1.2345), ("blue", 2)), ("A note.",)),),
    (Goal("blue", 2, 3.0), Goal("red", 2, 1.2345)),
    {"further": [1]},
)


def test_a_result_is_printed_with_its_goals() -> None:
    out = io.StringIO()
    Report(Console(file=out)).result(RESULT, 3.2)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == [
        "",
        "Colours",
        "name     ms",
        "red    1.23",
        "blue      2",
        "A note.",
        "MISSED: blue: 3, at most 2",
        "met: red: 1.23, at most 2",
        "colour: 3 s",
    ]


@pytest.mark.parametrize(("limit", "status"), [(2.0, 0), (1.0, 1)])
def test_the_command_writes_json_and_fails_when_a_goal_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, status: int
) -> None:
    result = Result("use", (), (Goal("wrong", limit, 2.0),), {"n": 1})
    monkeypatch.setattr(command, "QUESTIONS", {"use": lambda: result})
    done = CliRunner().invoke(command.main, ["use", "--out", str(tmp_path / "made")])
    assert done.exit_code == status
    written = json.loads((tmp_path / "made" / "use.json").read_text())
    assert written["goals"] == [
        {"what": "wrong", "limit": limit, "measured": 2.0, "met": not status}
    ]
    assert written["figures"] == {"n": 1}
    assert written["machine"]["cores"] >= 1


def test_an_unknown_question_is_refused_with_those_there_are() -> None:
    done = CliRunner().invoke(command.main, ["speed"])
    assert done.exit_code == 2
    assert "attribution" in done.output
