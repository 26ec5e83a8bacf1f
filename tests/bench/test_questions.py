"""The benches' questions in tiny configurations, and how results are written."""

import io
import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench import __main__ as command
from bench import nodepath, scheduler, webhook
from bench.load import Load
from bench.result import Result, Table, publish, wrong
from bench.reviews import review
from simulator.report import Report
from tests.agent.fakes import eventually
from webhook.admission.reviews import decode_review


def test_both_plugins_are_measured_and_no_start_waits_for_list() -> None:
    found = nodepath.measure(Load(1, 3, 3), seed=1)
    assert list(found.times) == list(found.cpu) == ["ours", "bare"]
    assert [len(seconds) for seconds in found.times.values()] == [2, 2]
    assert found.reads <= 1
    assert (found.lists, found.lists_at_start) == (2, 0)


def test_decisions_and_start_are_measured_on_small_clusters() -> None:
    speed = scheduler.Speed(20)
    speed.measure(10)
    assert len(speed.ours) == len(speed.first_fit) == 10
    before = {*threading.enumerate()}
    seconds, mib = scheduler.start(20, 100)
    assert seconds > 0
    assert mib > 10
    eventually(lambda: before >= {*threading.enumerate()}, "the API server's threads end", within=5)


def test_the_extender_gets_as_many_nodes_as_from_kube_scheduler() -> None:
    sent = [scheduler.nodes_sent(nodes) for nodes in (20, 100, 1000, 5000, 10_000)]
    assert sent == [20, 100, 420, 500, 500]


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_a_review_has_the_requested_size(size: int) -> None:
    body = review(size)
    assert size * 0.9 < len(body) < size * 1.1
    assert decode_review(body).name == "train"


@pytest.mark.slow
def test_both_sizes_are_measured_and_no_honest_review_fails() -> None:
    result = webhook.run(seconds=0.2, turns=1, stalled=30)
    costs, stalled = result.tables
    assert [row[0] for row in costs.rows] == ["5 KB", "50 KB"]
    assert len(stalled.rows) == 1
    assert result.wrong == []


# --- results ------------------------------------------------------------------------------


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
