"""A small file that outlives the agent process: always replaced as a whole, by rename."""

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class StateFile:
    """One text, in a folder that exists.

    It is not synced to disk, since it is not needed after a reboot. If it cannot be written (a full
    disk), the agent continues, and the next agent starts without it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.new")
        self._problem = ""

    def load(self) -> str:
        """Return the text; empty if there is none or it cannot be read."""
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            log.warning("state file cannot be read", extra=self._log_fields(error))
            return ""

    def save(self, text: str) -> None:
        """Replace the text; if that fails, remove it."""
        try:
            with os.fdopen(os.open(self._temporary, _FLAGS, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            self._temporary.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)  # the old text is out of date
            if str(error) != self._problem:
                log.warning("state file cannot be written", extra=self._log_fields(error))
            self._problem = str(error)
        else:
            self._problem = ""

    def _log_fields(self, error: Exception) -> dict[str, str]:
        return {"file": self._path.name, "reason": str(error)}
