"""Removes the sockets of killed processes."""

import logging
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path

log = logging.getLogger(__name__)

# Between bind and listen a socket refuses connections although its process runs.
_STARTUP_SECONDS = 10.0


def remove_dead(
    folder: Path, patterns: Collection[str], *, unix: Callable[[], float] = time.time
) -> None:
    """Remove the sockets in *folder* on which no process listens; log those that cannot be.

    *unix* returns seconds since 1970.
    """
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        try:
            old = unix() - path.stat().st_ctime > _STARTUP_SECONDS
            if old and path.is_socket() and refuses(path):
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("socket not removed", extra={"path": str(path), "reason": str(error)})


def refuses(path: Path) -> bool:
    """Return whether no process listens on a socket, or there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
        return False
