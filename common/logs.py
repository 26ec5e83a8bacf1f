"""Log lines: one JSON object per line on standard error, with the same fields in all programs.

Every line has the fields of :data:`FIELDS`. Values go into ``extra``, never into the message:
``log.warning("allocation write failed, will retry", extra={"pod": pod, "reason": reason})``.
``docs/reference.md`` describes both for admins.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

FIELDS = ("time", "level", "logger", "pid", "message")
TRACE = "exception"

_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "taskName"}
_OWN = frozenset(FIELDS) | {TRACE}
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


class JsonFormatter(logging.Formatter):
    """Formats a log record and its ``extra`` fields as one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        fields = {
            key: value
            for key, value in record.__dict__.items()
            if key not in _RECORD and key not in _OWN
        }
        if record.exc_info:
            fields[TRACE] = self.formatException(record.exc_info)
        return encode(
            record.created,
            record.levelname.lower(),
            record.name,
            record.process,
            record.getMessage(),
            fields,
        )


def encode(  # noqa: PLR0913, PLR0917 - the fields of a line, called thousands of times a second
    created: float,
    level: str,
    logger: str,
    pid: int | None,
    message: str,
    fields: Mapping[str, object],
) -> str:
    """Return one line without a newline.

    Args:
        created: unix time in seconds.
        level: ``debug``, ``info``, ``warning``, ``error`` or ``critical``.
        logger: the module that writes.
        pid: the process that writes.
        message: the event; the same text for every event of its kind.
        fields: further fields; their names differ from :data:`FIELDS`.
    """
    return _ENCODER.encode(
        {
            "time": datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "logger": logger,
            "pid": pid,
            "message": message,
            **fields,
        }
    )


def configure(level: str = "info", *, quiet: Sequence[str] = ()) -> None:
    """Write the log of the whole process to standard error.

    Args:
        level: the lowest level that is written.
        quiet: loggers of libraries, which write only warnings and errors.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)
