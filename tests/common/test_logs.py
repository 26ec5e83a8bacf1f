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
from common.text import cut


@pytest.fixture(autouse=True)
def libraries_as_before() -> Iterator[None]:
    yield
    logging.getLogger("urllib3").setLevel(logging.NOTSET)


def test_a_line_carries_the_message_and_its_fields() -> None:
    record = logging.makeLogRecord(
        {
            "name": "agent.runtime",
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
    assert JsonFormatter().format(record) == (
        '{"time":"2026-01-01T00:00:00.250+00:00","level":"warning","logger":"agent.runtime",'
        '"pid":7,"message":"refused it","pod":"default/a","path":"/x","count":3}'
    )


def test_a_line_of_an_exception_is_one_line_and_keeps_its_own_fields() -> None:
    try:
        raise KeyError("why\nnot")
    except KeyError:
        record = logging.makeLogRecord(
            {"msg": "m", "exc_info": sys.exc_info(), "level": "fatal", "time": "never"}
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert found[TRACE].startswith("Traceback")
    assert found["level"] != "fatal"
    assert found["time"] != "never"


@given(st.text(), st.text())
def test_no_value_breaks_a_line_or_adds_another(message: str, value: str) -> None:
    record = logging.makeLogRecord({"msg": message, "reason": value})
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert (found["message"], found["reason"]) == (message, value)


def test_lines_below_the_level_and_of_quiet_libraries_are_omitted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("info", quiet=("urllib3",))
    logging.getLogger("agent").debug("too fine")
    logging.getLogger("urllib3.connectionpool").info("Starting new HTTPS connection")
    logging.getLogger("agent").info("served", extra={"n": 1})
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert tuple(found) == (*FIELDS, "n")
    assert {"message": "served", "level": "info", "pid": os.getpid()}.items() <= found.items()


def test_debug_logs_more_and_configuring_twice_does_not_write_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure()
    configure("debug")
    logging.getLogger("agent").debug("finer")
    assert json.loads(capsys.readouterr().err)["message"] == "finer"


@pytest.mark.parametrize(("text", "shown"), [("abcd", "abcd"), ("abcde", "a...")])
def test_cut_shows_that_it_was(text: str, shown: str) -> None:
    assert cut(text, 4) == shown
