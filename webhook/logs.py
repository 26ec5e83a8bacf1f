"""Log lines as JSON, one object a line, on standard error.

What happens goes through :mod:`logging`. Reviews, thousands a second, are written by an
:class:`AccessLog` of their own, whose lines look alike: a log record costs a fifth of a
whole review.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO


class JsonFormatter(logging.Formatter):
    """Writes a record, and the fields given with it (see :func:`fields`), as one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"), default=str)


_STANDARD_ERROR = 2


class AccessLog:
    """Writes a line for every review.

    Args:
        sink: takes each line; standard error, unbuffered, when not given.
        clock: gives unix time in seconds.
    """

    def __init__(
        self,
        sink: Callable[[bytes], object] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink or partial(os.write, _STANDARD_ERROR)
        self._clock = clock
        self._head = {"level": "info", "logger": "webhook.access", "pid": os.getpid()}

    def write(self, message: str, **values: object) -> None:
        """Write one line."""
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, **self._head, "message": message, **values}
        self._sink(f"{_ENCODER.encode(line)}\n".encode("ascii"))


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def fields(**values: object) -> Mapping[str, object]:
    """Wrap fields for a logging call: ``logger.info("reviewed", extra=fields(uid=uid))``."""
    return {"fields": values}


def configure(stream: TextIO = sys.stderr) -> None:
    """Send everything this package logs to *stream*, as JSON."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("webhook")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
