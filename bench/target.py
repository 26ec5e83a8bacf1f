"""The target of the fuzzer: a connection of gunicorn's ``asgi`` worker, without a socket."""

import asyncio
import json
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

from gunicorn.config import Config

from common.serving.asgi import Adapter
from common.serving.client import Connection
from contract.names import Names
from contract.stamps import OrderStamp
from webhook.access_log import AccessLog
from webhook.admission.options import DefaultMemory, Options
from webhook.admission.reviews import LARGEST_BODY
from webhook.admission.routes import make_routes
from webhook.app import Handler, create_app

_TURNS = 12
"""Of the event loop, after which whatever has arrived is answered."""


class Unacceptable(Exception):
    """An input was answered as none may be; the message says how."""


class Target:
    """The part of a worker behind its sockets."""

    def __init__(self) -> None:
        routes = make_routes(
            names=Names(),
            stamp=lambda: OrderStamp(1_700_000_000_000_000_000, "fuzz", 0),
            options=Options(largest_card=96, default_memory=DefaultMemory.PROPORTIONAL),
        )
        handler = Handler(routes, access=AccessLog(len))
        self._metrics = handler.metrics
        self._loop = asyncio.new_event_loop()
        config = Config()
        config.set("asgi_disconnect_grace_period", 0)
        log: Any = logging.getLogger("bench.target")
        log.access_log_enabled = False
        self._worker = SimpleNamespace(
            cfg=config,
            log=log,
            loop=self._loop,
            asgi=Adapter(create_app(handler), handler.metrics, largest=LARGEST_BODY),
            alive=True,
            nr=0,
            max_requests=2**63,
            nr_conns=0,
            state={},
        )
        self.statuses: Counter[str] = Counter()

    def close(self) -> None:
        """End the event loop."""
        self._loop.close()

    def try_one(self, data: bytes) -> None:
        """Send *data* over a new connection, in two pieces; check every answer.

        Raises:
            Unacceptable: an answer is none, or says that the server has failed.
        """
        listener: Any = SimpleNamespace(answered=lambda _: None)
        connection = Connection(self._worker, listener, self._metrics, set())
        transport: Any = _Transport()
        self._loop.run_until_complete(_send(connection, transport, data))
        for answer in _split(b"".join(transport.sent), data):
            self.statuses[answer] += 1


async def _send(connection: Connection, transport: Any, data: bytes) -> None:
    connection.connection_made(transport)
    middle = len(data) // 2
    for piece in (data[:middle], data[middle:]):
        if piece and not transport.closed:
            connection.data_received(piece)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0)


class _Transport:
    """asyncio's transport, as far as a connection uses it; nothing is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        known = {"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 8443)}
        return known.get(name, SimpleNamespace(fileno=lambda: 9) if name == "socket" else None)

    def write(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def _split(sent: bytes, data: bytes) -> list[str]:
    """Return the status of each answer.

    Raises:
        Unacceptable: one is none, or says that the server has failed.
    """
    found = []
    while sent:
        head, _, sent = sent.partition(b"\r\n\r\n")
        status = head[9:12].decode("ascii", "replace")
        if not head.startswith(b"HTTP/1.") or not status.startswith(("1", "2", "4", "501")):
            raise Unacceptable(f"{head!r} for {data!r}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", b"0"))
        if data.startswith(b"HEAD"):
            length = 0
        body, sent = sent[:length], sent[length:]
        if len(body) < length:
            raise Unacceptable(f"{head!r} has {len(body)} bytes, for {data!r}")
        if fields.get(b"content-type") == b"application/json":
            json.loads(body)
        if status != "100":
            found.append(status)
    return found
