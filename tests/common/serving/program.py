"""A server of our kind with a small application: ``program.py PORT CERT KEY CONNECTIONS``.

A request must arrive within a second, and a client without one is ended after two.
"""

import asyncio
import sys
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


async def _late(_: dict[str, Any]) -> Answer:
    await asyncio.sleep(0.5)
    return _ok(b"late")


class Program(Master):
    """A server with two routes."""

    def __init__(self, serving: Serving, certificate: Certificate) -> None:
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
        app.add("/late", "GET", _late)
        app.add("/metrics", "GET", lambda _: _ok(self._metrics.render()))
        return Adapter(app, self._metrics, largest=LARGEST, keeps=lambda: not self.draining)


if __name__ == "__main__":
    port, cert, key, connections = sys.argv[1:]
    client.ARRIVAL_SECONDS, client.IDLE_SECONDS, client.HANDSHAKE_SECONDS = 1.0, 2, 1.0
    configure()
    serving = Serving("test", f"127.0.0.1:{port}", connections=int(connections), drain_delay=0.0)
    Program(serving, Certificate(Files(Path(cert), Path(key)))).run()
