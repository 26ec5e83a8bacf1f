"""Log lines are JSON objects on standard error."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.logs import JsonFormatter, configure


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    root.setLevel(level)
    logging.getLogger("watchfiles").setLevel(logging.NOTSET)


def test_a_line_carries_the_event_and_its_fields() -> None:
    record = logging.makeLogRecord(
        {
            "name": "agent.journal",
            "levelname": "WARNING",
            "msg": "refused %s",
            "args": ("it",),
            "created": 1_767_225_600.25,
            "pod": "default/a",
            "path": Path("/x"),
            "count": 3,
        }
    )
    assert JsonFormatter().format(record) == json.dumps(
        {
            "time": "2026-01-01T00:00:00.250+00:00",
            "level": "warning",
            "logger": "agent.journal",
            "event": "refused it",
            "pod": "default/a",
            "path": "/x",
            "count": 3,
        }
    )


def test_a_line_of_an_exception_is_still_one_line() -> None:
    try:
        raise KeyError("why\nnot")
    except KeyError:
        record = logging.makeLogRecord({"msg": "call failed", "exc_info": sys.exc_info()})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].startswith("Traceback")


def test_the_level_is_kept_to_and_the_file_watcher_is_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("info")
    logging.getLogger("agent").debug("too fine")
    logging.getLogger("watchfiles.main").info("1 change detected")
    logging.getLogger("agent").info("told", extra={"n": 1})
    (line,) = capsys.readouterr().err.splitlines()
    assert {"event": "told", "level": "info", "n": 1}.items() <= json.loads(line).items()


def test_debug_tells_more(capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug")
    logging.getLogger("agent").debug("finer")
    assert json.loads(capsys.readouterr().err)["event"] == "finer"
