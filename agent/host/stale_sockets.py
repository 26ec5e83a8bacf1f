"""Removes sockets that processes which were killed have left behind."""

import logging
import socket
import time
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

# Between bind and listen a socket refuses connections though its process lives.
_YOUNG_SECONDS = 10.0


def remove_dead(folder: Path, patterns: Collection[str]) -> None:
    """Remove the sockets in *folder* at which nobody listens; what cannot be removed stays."""
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        try:
            old = time.time() - path.stat().st_ctime > _YOUNG_SECONDS
            if old and path.is_socket() and _refuses(path):
                path.unlink()
        except OSError as error:
            log.warning("a socket stays", extra={"path": str(path), "reason": str(error)})


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False
