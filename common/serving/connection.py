"""One client's connection: gunicorn's own, with deadlines for reading and writing."""

import asyncio
import ipaddress
import math
from asyncio import BaseTransport
from enum import Enum
from typing import Any

from gunicorn.asgi.protocol import ASGIProtocol

from common.listener import plain_response
from common.serving.app import TEXT, VERIFIED
from common.serving.metrics import ServerMetrics


class Phase(Enum):
    """The state of a connection, by what it waits for."""

    IDLE = "the first byte of a request"
    ARRIVING = "the rest of a request"
    ANSWERING = "the application"
    SENDING = "the client to read the response"


# The API server keeps idle connections for 90 s. A server that closes earlier may close while a
# review is in flight, and not every review is sent again.
SECONDS = {Phase.IDLE: 120.0, Phase.ARRIVING: 15.0, Phase.ANSWERING: math.inf, Phase.SENDING: 20.0}


_LATE = plain_response(
    408, TEXT, f"a request must arrive within {SECONDS[Phase.ARRIVING]:.0f} s\n".encode()
)
_NO_MEMORY = plain_response(503, TEXT, b"too many large requests are arriving\n")


def is_verified(transport: BaseTransport) -> bool:
    """Return whether the client has a valid certificate; without TLS, whether it is local."""
    if transport.get_extra_info("sslcontext") is not None:
        return bool(transport.get_extra_info("peercert"))
    peer = transport.get_extra_info("peername")
    if peer is None:  # it is gone already
        return False
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class ClientConnection(ASGIProtocol):  # type: ignore[misc]  # gunicorn has no type information
    """One client of gunicorn's ``asgi`` worker.

    gunicorn has no deadline for the first header and the body. So three of asyncio's callbacks are
    extended, to detect the start of a connection, the start of a request, and the end. For each
    request gunicorn calls :meth:`_handle`, which calls the application.

    Attributes:
        gone: done when the connection has ended.
        held: bytes in memory of a body that is arriving.
    """

    transport: Any

    def __init__(self, worker: Any) -> None:
        """Prepare; *worker* is a :class:`common.serving.server.Worker`."""
        super().__init__(worker)
        self.app = self._handle
        self.gone: asyncio.Future[None] = worker.loop.create_future()
        self.held = 0
        self._metrics: ServerMetrics = worker.app.metrics
        self._served_by = asyncio.current_task()
        self._verified = False
        self._enter(Phase.IDLE)

    def connection_made(self, transport: BaseTransport) -> None:
        """Register the connection; the handshake is done."""
        self._verified = is_verified(transport)
        self.worker.connections.add(self)
        self._metrics.connections += 1
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Read data; its first byte starts the deadline of a request."""
        if self._phase is Phase.IDLE:
            self._enter(Phase.ARRIVING)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self.worker.connections.discard(self)
        self._metrics.connections -= 1
        super().connection_lost(exc)
        # This object and its parser refer to each other. Until garbage is collected they would keep
        # about 300 KiB of TLS in memory.
        self.transport = self.writer = self._flow_control = None
        if not self.gone.done():
            self.gone.set_result(None)

    def end_if_late(self, now: float) -> None:
        """End the connection if its deadline is over."""
        if self._due > now:
            return
        self._metrics.ended("write-timeout" if self._phase is Phase.SENDING else "timeout")
        if self._phase is Phase.ARRIVING:
            self.refuse(_LATE)
        else:
            self.transport.abort()

    def end_if_idle(self) -> None:
        """End the connection if it has no request."""
        if self._phase is Phase.IDLE:
            self.transport.close()

    def refuse(self, refusal: bytes) -> None:
        """Send *refusal* and end the connection; its request has not arrived completely."""
        self._release()
        self._enter(Phase.ANSWERING)  # without a deadline: it ends anyway
        self.transport.write(refusal)
        self.transport.close()

    async def _handle(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Call the application for one request."""
        worker = self.worker
        if self._phase is Phase.IDLE:  # it arrived together with an earlier one
            self._enter(Phase.ARRIVING)
        keep = worker.app.keeps()

        async def take() -> Any:
            event = await receive()
            if event.get("more_body"):
                self._hold(len(event["body"]))
            else:
                self._release()
                self._enter(Phase.ANSWERING)
            return event

        async def give(message: dict[str, Any]) -> None:
            if not keep and "headers" in message:
                message["headers"].append((b"Connection", b"close"))
            self._enter(Phase.SENDING)
            await send(message)
            self._enter(Phase.ANSWERING)

        self._metrics.requests += 1
        try:
            scope[VERIFIED] = self._verified
            await worker.asgi(scope, take, give)
            worker.listener.mark_answered(self._served_by)
            if not keep and self.transport is not None:
                self.transport.close()
        finally:
            self._metrics.requests -= 1
            self._release()
            self._enter(Phase.IDLE)

    def _hold(self, size: int) -> None:
        """Count bytes of a body; if all bodies are too large, end the largest one's connection."""
        worker = self.worker
        self.held += size
        worker.arriving += size
        if worker.arriving > worker.app.all_bodies:
            self._metrics.ended("memory")
            max(worker.connections, key=lambda each: each.held).refuse(_NO_MEMORY)

    def _release(self) -> None:
        self.worker.arriving -= self.held
        self.held = 0

    def _enter(self, phase: Phase) -> None:
        self._phase, self._due = phase, self.worker.loop.time() + SECONDS[phase]
