"""Log lines as JSON, one object a line, on standard error."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
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
