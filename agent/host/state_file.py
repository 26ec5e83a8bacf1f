"""One small file that survives the agent: replaced as a whole, by rename."""

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class StateFile:
    """Implements :class:`agent.allocator.saved_state.Store` in a folder that is there.

    Nothing is synced to disk: after a reboot there is another kubelet, to which it means nothing.
    Where it cannot be written (a full disk) calls are answered all the same: when the agent dies
    then, the next one may have to guess the first call.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fresh = path.with_name(f".{path.name}.new")
        self._problem = ""

    def load(self) -> str:
        """Return the text; empty where there is none."""
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, ValueError):
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
                log.warning("the pod in service cannot be kept", extra={"reason": str(error)})
            self._problem = str(error)
        else:
            self._problem = ""
