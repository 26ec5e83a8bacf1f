"""A device plugin in its own process, which kills itself at a given call.

    python -m tests.proxy.plugin_process FOLDER ENDPOINT [KILL_AT]

KILL_AT is ``METHOD:before`` or ``METHOD:after``: the first call of METHOD kills the process, before
or right after its response. Its name is its endpoint, and it prints ``registered``
once it is.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.proxy.plugin import Plugin

_LATER_SECONDS = 0.02


class _KillablePlugin(Plugin):
    """A plugin that kills itself in a call."""

    def __init__(self, folder: Path, endpoint: str, kill_at: str) -> None:
        self._method, _, self._when = kill_at.partition(":")
        super().__init__(folder, endpoint, endpoint=endpoint)

    def _handle(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._kill_at(method, "before")
        self._kill_at(method, "after")
        return super()._handle(method, request, context)

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._kill_at("ListAndWatch", "before")
        for each in super()._watch(request, context):
            yield each
            self._kill_at("ListAndWatch", "after")

    def _kill_at(self, method: str, when: str) -> None:
        if (method, when) != (self._method, self._when):
            return
        if when == "after":
            threading.Timer(_LATER_SECONDS, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # for the signal


def main(folder: Path, endpoint: str, kill_at: str = "") -> None:
    """Serve, register with the proxy of *folder*, and wait for a signal."""
    _KillablePlugin(folder, endpoint, kill_at).register()
    print("registered", flush=True)  # noqa: T201 -- the test reads it
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
