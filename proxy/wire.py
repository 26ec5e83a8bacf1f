"""gRPC with bytes in and bytes out. Only this module imports ``grpc``.

Messages are forwarded unchanged, because kubelet and plugin may use fields that are unknown here.
All servers are on unix sockets.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import grpc
import grpc.aio

from proxy.errors import Code, RpcFailed

CallHandler = Callable[[bytes, Mapping[str, str]], Awaitable[bytes]]
"""Handles one call and its metadata. It is cancelled if its caller disconnects."""
StreamHandler = Callable[[], AsyncIterator[bytes]]
"""Sends messages until the caller disconnects."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    # A shared pool would keep the back-off of a socket without a listener.
    ("grpc.use_local_subchannel_pool", 1),
    # No pings that measure the connection: useless on a unix socket.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.so_reuseport", 0),
    # Without filters that a unix socket does not need: saves a quarter of a call's CPU time.
    ("grpc.minimal_stack", 1),
    ("grpc.enable_retries", 0),
)
_CODES = {each.value[0]: each for each in grpc.StatusCode}


class GrpcServer:
    """One socket with one gRPC service, or more.

    gRPC unlinks a socket's path when its server stops, even late, and a server without references
    stops. So every server needs its own path, and its owner must keep a reference.
    """

    def __init__(
        self,
        socket: Path,
        service: str,
        *,
        calls: Mapping[str, CallHandler],
        streams: Mapping[str, StreamHandler] | None = None,
    ) -> None:
        """Prepare.

        The *socket* must not exist yet. *service* has its package, such as
        ``v1beta1.Registration``; *calls* and *streams* are handlers, by name of the method.
        """
        self.socket = socket
        self._server = grpc.aio.server(options=_OPTIONS)
        self.add(service, calls=calls, streams=streams)

    def add(
        self,
        service: str,
        *,
        calls: Mapping[str, CallHandler] | None = None,
        streams: Mapping[str, StreamHandler] | None = None,
    ) -> None:
        """Serve one more service; before :meth:`start`."""
        handlers = {
            **{
                name: grpc.unary_unary_rpc_method_handler(_call_handler(each))
                for name, each in (calls or {}).items()
            },
            **{
                name: grpc.unary_stream_rpc_method_handler(_stream_handler(each))
                for name, each in (streams or {}).items()
            },
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),)
        )

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the socket cannot be made.
        """
        try:
            self._server.add_insecure_port(_address(self.socket))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self.socket}: {error}") from error
        await self._server.start()

    async def stop(self) -> None:
        """End every call and stream."""
        await self._server.stop(None)


class GrpcPeer:
    """A connection to the server of a socket."""

    def __init__(self, socket: Path) -> None:
        """Prepare; the first call dials."""
        self._channel = grpc.aio.insecure_channel(_address(socket), _OPTIONS)
        self._methods: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def call(self, method: str, request: bytes) -> bytes:
        """Make one call, without a timeout.

        *method* is a path, such as ``/v1beta1.Registration/Register``.

        Raises:
            RpcFailed: it ended with an error, no server listens, or :meth:`close` was called.
        """
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(method, None, None)
        with _translated():
            response: bytes = await self._methods[method](request)
        return response

    async def stream(self, method: str) -> AsyncGenerator[bytes]:
        """Receive messages until the server ends the stream.

        Raises:
            RpcFailed: it ended with an error, no server listens, or :meth:`close` was called.
        """
        call = self._channel.unary_stream(method, None, None)(b"")
        try:
            with _translated():
                async for message in call:
                    yield message
        finally:
            call.cancel()

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def disconnected(self) -> None:
        """Connect, and return when the connection is lost, or the server refuses it."""
        state = self._channel.get_state(try_to_connect=True)
        was_connected = False
        while True:
            was_connected = was_connected or state is grpc.ChannelConnectivity.READY
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)
            refused = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if refused or (was_connected and state is not grpc.ChannelConnectivity.READY):
                return

    async def close(self) -> None:
        """Disconnect; calls in progress are cancelled."""
        await self._channel.close(None)


def _address(socket: Path) -> str:
    return f"unix:{quote(str(socket))}"  # a URI: a file name may have "%" or "#" in it


@contextmanager
def _translated() -> Iterator[None]:
    """Translate the errors of a call, also of one that is cancelled because its peer is closed.

    As an ``asyncio.CancelledError`` it would end a handler, which then sends no response at all.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code: int = error.code().value[0]
        trailing: Any = error.trailing_metadata()  # the stubs are incomplete
        raise RpcFailed(code, error.details() or "", tuple(trailing or ())) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # the handler itself is cancelled
        raise RpcFailed(Code.CANCELLED, "disconnected") from None


def _call_handler(handle: CallHandler) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handler(request: bytes, context: Any) -> bytes:
        try:
            return await handle(request, dict(context.invocation_metadata() or ()))
        except RpcFailed as failure:
            code = _CODES.get(failure.code, _CODES[Code.UNKNOWN])
            await context.abort(code, failure.text, failure.trailing)
            raise

    return handler


def _stream_handler(messages: StreamHandler) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    async def handler(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        async for message in messages():
            yield message

    return handler
