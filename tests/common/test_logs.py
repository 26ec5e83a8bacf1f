"""Log lines are JSON objects on standard error, with the same fields in all programs."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.logs import FIELDS, TRACE, JsonFormatter, configure


@pytest.fixture(autouse=True)
def libraries_as_before() -> Iterator[None]:
    yield
    logging.getLogger("urllib3").setLevel(logging.NOTSET)


def test_a_line_carries_the_message_and_its_fields() -> None:
    record = logging.makeLogRecord(
        {
            "name": "agent.observability.decision_log",
            "levelname": "WARNING",
            "msg": "refused %s",
            "args": ("it",),
            "created": 1_767_225_600.25,
            "process": 7,
            "pod": "default/a",
            "path": Path("/x"),
            "count": 3,
        }
    )
    assert JsonFormatter().format(record) == json.dumps(
        {
            "time": "2026-01-01T00:00:00.250+00:00",
            "level": "warning",
            "logger": "agent.observability.decision_log",
            "pid": 7,
            "message": "refused it",
            "pod": "default/a",
            "path": "/x",
            "count": 3,
        },
        separators=(",", ":"),
    )


def test_a_line_of_an_exception_is_still_one_line() -> None:
    try:
        raise KeyError("why\nnot")
    except KeyError:
        record = logging.makeLogRecord({"msg": "call failed", "exc_info": sys.exc_info()})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)[TRACE].startswith("Traceback")


@given(st.text(), st.text())
def test_no_value_breaks_a_line_or_adds_another(message: str, value: str) -> None:
    record = logging.makeLogRecord({"msg": message, "reason": value})
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert (found["message"], found["reason"]) == (message, value)


def test_a_field_of_a_record_does_not_replace_one_of_every_line() -> None:
    record = logging.makeLogRecord(
        {"msg": "m", "levelname": "INFO", "level": "fatal", "time": "never"}
    )
    found = json.loads(JsonFormatter().format(record))
    assert found["level"] == "info"
    assert found["time"] != "never"


def test_the_level_is_kept_to_and_a_chatty_library_is_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("info", quiet=("urllib3",))
    logging.getLogger("agent").debug("too fine")
    logging.getLogger("urllib3.connectionpool").info("Starting new HTTPS connection")
    logging.getLogger("agent").info("told", extra={"n": 1})
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert tuple(found) == (*FIELDS, "n")
    assert {"message": "told", "level": "info", "pid": os.getpid()}.items() <= found.items()


def test_debug_logs_more_and_configuring_twice_does_not_write_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure()
    configure("debug")
    logging.getLogger("agent").debug("finer")
    assert json.loads(capsys.readouterr().err)["message"] == "finer"
