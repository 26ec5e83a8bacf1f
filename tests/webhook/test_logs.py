import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from webhook import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger("webhook")
    before = (logger.handlers[:], logger.propagate, logger.level)
    stream = io.StringIO()
    logs.configure(stream)
    yield stream
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


def _only(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_a_record_is_one_line_of_json_with_its_fields(stream: io.StringIO) -> None:
    logging.getLogger("webhook.app").info(
        "re%s", "viewed", extra=logs.fields(uid="a\nb", rules=("x",))
    )
    line = _only(stream)
    assert line.pop("time").endswith("+00:00")
    assert isinstance(line.pop("pid"), int)
    assert line == {
        "level": "info",
        "logger": "webhook.app",
        "message": "reviewed",
        "uid": "a\nb",
        "rules": ["x"],
    }


def test_a_trace_stays_on_the_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("webhook.app").exception("failed")
    assert "ValueError: broken" in _only(stream)["exception"]


def test_configuring_twice_does_not_write_twice(stream: io.StringIO) -> None:
    logs.configure(stream)
    logging.getLogger("webhook").info("once")
    assert _only(stream)["message"] == "once"
