"""Results, and how they are printed and written."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench import __main__ as command
from bench.result import Result, Table, publish, wrong
from simulator.report import Report


def test_a_result_is_printed_with_what_is_wrong(tmp_path: Path) -> None:
    out = io.StringIO()
    table = Table("Colours", ("name", "ms"), (("red", 1.2345), ("blue", 2)), ("A note.",))
    result = Result("colour", (table,), wrong({"too blue": 3, "too red": 0}))
    publish(result, 3.2, tmp_path, Report(Console(file=out)))
    *lines, last = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == [
        "",
        "Colours",
        "name     ms",
        "red    1.23",
        "blue      2",
        "A note.",
        "WRONG: too blue: 3",
    ]
    assert last.startswith("colour: 3 s, ")


@pytest.mark.parametrize("found", [(), ("named wrongly: 2",)])
def test_the_command_writes_json_and_fails_where_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...]
) -> None:
    monkeypatch.setattr(command, "QUESTIONS", {"webhook": lambda: Result("webhook", (), found)})
    done = CliRunner().invoke(command.main, ["webhook", "--out", str(tmp_path / "made")])
    assert done.exit_code == bool(found)
    written = json.loads((tmp_path / "made" / "webhook.json").read_text())
    assert written["wrong"] == list(found)
    assert " cores, Python " in written["machine"]


def test_an_unknown_question_is_refused_with_a_list_of_questions() -> None:
    done = CliRunner().invoke(command.main, ["speed"])
    assert done.exit_code == 2
    assert "nodepath" in done.output
