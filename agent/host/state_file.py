"""A small file that survives the agent: replaced as a whole, by rename."""

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class StateFile:
    """One text in a folder that is there.

    Nothing is synced to disk: after a reboot it means nothing. Where it cannot be written (a full
    disk) the agent works on: the next one starts without it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fresh = path.with_name(f".{path.name}.new")
        self._problem = ""

    def load(self) -> str:
        """Return the text; empty where there is none, or none that can be read."""
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            log.warning("a small file cannot be read", extra=self._about(error))
            return ""

    def save(self, text: str) -> None:
        """Replace the text; where that fails there is none."""
        try:
            with os.fdopen(os.open(self._fresh, _FLAGS, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            self._fresh.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)  # what it says is no longer so
            if str(error) != self._problem:
                log.warning("a small file cannot be kept", extra=self._about(error))
            self._problem = str(error)
        else:
            self._problem = ""

    def _about(self, error: Exception) -> dict[str, str]:
        return {"file": self._path.name, "reason": str(error)}
