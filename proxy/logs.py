"""Log lines: one JSON object a line on standard error, with the fields of all our programs."""

import json
import logging
from datetime import UTC, datetime

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"taskName", "message", "asctime"}


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _OWN},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))


def configure(level: str) -> None:
    """Write the log of the whole process to standard error, from *level* on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
