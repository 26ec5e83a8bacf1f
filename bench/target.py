"""The target of the fuzzer: a connection without a socket.

Imported late, for atheris to instrument.
"""

import json
import time
from collections import Counter
from typing import Any

from common.serving.connections import Connections, Limits
from common.serving.protocol import HttpConnection, Service
from contract.names import Names
from contract.stamps import OrderStamp
from webhook.access_log import AccessLog
from webhook.admission.options import DefaultMemory, Options
from webhook.admission.reviewer import Reviewer
from webhook.admission.reviews import LARGEST_BODY
from webhook.handler import Handler
from webhook.server.app import create_app


class Unacceptable(Exception):
    """An input was answered as none may be; the message says how."""


class Target:
    """The part of a worker behind its sockets."""

    def __init__(self) -> None:
        reviewer = Reviewer(
            names=Names(),
            stamp=lambda: OrderStamp(1_700_000_000_000_000_000, "fuzz", 0),
            options=Options(largest_card=96, default_memory=DefaultMemory.PROPORTIONAL),
        )
        handler = Handler(reviewer, access=AccessLog(len))
        connections = Connections(Limits(1, 2**26), clock=time.monotonic, observer=handler.metrics)
        self._service = Service(
            connections,
            create_app(handler),
            keeps_alive=lambda: True,
            largest_body=LARGEST_BODY,
        )
        self.statuses: Counter[str] = Counter()

    def try_one(self, data: bytes) -> None:
        """Send *data* over a new connection, in two pieces; check every answer.

        Raises:
            Unacceptable: an answer is none, or says that the server has failed.
        """
        transport = _Transport()
        connection = HttpConnection(self._service, hang_up=lambda: None)
        connection.connection_made(transport)  # type: ignore[arg-type]  # as far as it is used
        middle = len(data) // 2
        for piece in (data[:middle], data[middle:]):
            connection.data_received(piece)
        connection.connection_lost(None)
        for answer in transport.answers:
            self.statuses[_status(answer, data)] += 1


class _Transport:
    """asyncio's transport, as far as a connection uses it; nothing is sent."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 8443)}.get(name)

    def write(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 100 "):
            self.answers.append(data)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def _status(answer: bytes, data: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode("ascii", "replace")
    if not head.startswith(b"HTTP/1.1 ") or not status.startswith(("2", "4")):
        raise Unacceptable(f"{head!r} for {data!r}")
    if b"application/json" in head:
        json.loads(body)
    return status
