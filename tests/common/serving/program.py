"""A server of our kind with a small application: ``PORT CERT KEY CONNECTIONS GATE PATIENCE``.

``/late`` is answered when the file GATE is there. Without PATIENCE a request must arrive within a
second, and a handshake or a first request within five.
"""

import asyncio
import sys
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from common.logs import configure
from common.serving import client
from common.serving.answer import TEXT, Answer
from common.serving.app import Application, read_body
from common.serving.asgi import Adapter
from common.serving.master import Master, Serving
from common.serving.metrics import ServerMetrics
from common.serving.tls import Certificate, Files

LARGEST = 2**20


class TooLarge(Exception):
    """More than may come."""


def _ok(body: bytes) -> Answer:
    return Answer(HTTPStatus.OK, TEXT, body)


def _length(environ: dict[str, Any]) -> Answer:
    try:
        return _ok(str(len(read_body(environ, LARGEST, too_large=TooLarge))).encode())
    except TooLarge as error:
        return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TEXT, str(error).encode())


async def _late(gate: Path, _: dict[str, Any]) -> Answer:
    while not gate.exists():  # noqa: ASYNC110, ASYNC240 -- of another process
        await asyncio.sleep(0.02)
    return _ok(b"late")


class Program(Master):
    """A server with two routes."""

    def __init__(self, serving: Serving, certificate: Certificate, gate: Path) -> None:
        self._gate = gate
        self._metrics = ServerMetrics("test_")
        super().__init__(serving, certificate)

    @property
    def metrics(self) -> ServerMetrics:
        """The metrics of the worker."""
        return self._metrics

    def load(self) -> Adapter:
        """Make the application."""
        app = Application(lambda _, status, text: Answer(status, TEXT, text.encode()), "ours")
        app.add("/length", "POST", _length)
        app.add("/late", "GET", partial(_late, self._gate))
        app.add("/metrics", "GET", lambda _: _ok(self._metrics.render()))
        return Adapter(app, self._metrics, largest=LARGEST, keeps=lambda: not self.draining)


if __name__ == "__main__":
    port, cert, key, connections, gate, patience = sys.argv[1:]
    if patience == "none":
        client.ARRIVAL_SECONDS, client.IDLE_SECONDS, client.HANDSHAKE_SECONDS = 1.0, 5, 5.0
    configure()
    serving = Serving("test", "127.0.0.1", int(port), connections=int(connections), drain_delay=0.0)
    Program(serving, Certificate(Files(Path(cert), Path(key))), Path(gate)).run()
