"""A server of our kind with a small application: ``PORT CERT KEY CONNECTIONS GATE PATIENCE``.

``/late`` is answered when the file GATE is there, ``/large`` with more than the kernel takes.
PATIENCE is ``all``; with ``none`` a request must arrive, and an answer be taken, within a second,
and a handshake or a first byte come within five; ``plain`` is ``none`` without TLS.
"""

import asyncio
import sys
from functools import partial
from http import HTTPStatus
from pathlib import Path

from common.logs import configure
from common.serving import connection, server
from common.serving.app import TEXT, Application, HttpRequest, HttpResponse
from common.serving.connection import Phase
from common.serving.errors import BadRequest
from common.serving.metrics import ServerMetrics
from common.serving.tls import Files, ServedCertificate

LARGEST = 2**20
ALL_BODIES = 2**21


def _ok(body: bytes) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, TEXT, body)


def _length(request: HttpRequest) -> HttpResponse:
    try:
        return _ok(str(len(request.body())).encode())
    except BadRequest as error:
        return HttpResponse(error.status, TEXT, str(error).encode())


async def _late(gate: Path, _: HttpRequest) -> HttpResponse:
    while not gate.exists():  # noqa: ASYNC110, ASYNC240 -- of another process
        await asyncio.sleep(0.02)
    return _ok(b"late")


class Program(server.GunicornServer):
    """A server with a few routes."""

    gate = Path()

    def load(self) -> Application:
        """Make the application."""
        refuse = lambda _, status, text: HttpResponse(status, TEXT, text.encode())  # noqa: E731
        app = Application(refuse, "ours", LARGEST)
        app.add("/length", "POST", _length)
        app.add("/late", "GET", partial(_late, self.gate))
        app.add("/large", "GET", lambda _: _ok(bytes(2**25)))
        app.add("/metrics", "GET", lambda _: _ok(self.metrics.render()))
        return app


if __name__ == "__main__":
    port, cert, key, connections, gate, patience = sys.argv[1:]
    if patience != "all":
        times = {Phase.IDLE: 5.0, Phase.ARRIVING: 1.0, Phase.SENDING: 1.0}
        connection.SECONDS.update(times)
        server.HANDSHAKE_SECONDS = 5.0
    configure()
    Program.gate = Path(gate)
    certificate = None if patience == "plain" else ServedCertificate(Files(Path(cert), Path(key)))
    Program(
        "test",
        "127.0.0.1",
        int(port),
        ServerMetrics("test_", tls=certificate is not None),
        certificate,
        connections=int(connections),
        all_bodies=ALL_BODIES,
        drain_delay=0.0,
    ).run()
