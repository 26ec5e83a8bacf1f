"""Which life of the kubelet is there, by the file of its socket, looked at before each call.

A kubelet that starts makes its socket anew and tries the node's pods anew (K11). Behind the device
plugin proxy nothing else tells of it: the registration with the proxy outlives the kubelet.
"""

import logging
import threading
from pathlib import Path

from agent.kubelet.directory_watch import identity
from agent.kubelet.server import KUBELET_SOCKET

log = logging.getLogger(__name__)


class KubeletLife:
    """Names the kubelet's lives. Safe to share between threads."""

    def __init__(self, kubelet_dir: Path) -> None:
        """Know of no kubelet yet; *kubelet_dir* is its own device plugin directory, only read."""
        self._socket = kubelet_dir / KUBELET_SOCKET
        self._lock = threading.Lock()
        self._last = ""

    def current(self) -> str:
        """Return what names the kubelet's life; of one that is down, its last; empty before any."""
        now = identity(self._socket)
        if now is None:
            return self._last
        life = "-".join(map(str, now))
        with self._lock:
            before, self._last = self._last, life
        if before not in {"", life}:
            log.info("the kubelet has restarted")
        return life
