"""gRPC servers on unix sockets, which can end as if killed, and errors in grpc-go's words."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import grpc

from simulator.kubelet.errors import TurnedAway

LONGEST_PATH = 107
"""``sun_path`` has 108 bytes, one of them for the terminating zero."""


class Misbehavior:
    """Faults at a kubelet's sockets; none by default.

    Moments: ``Register`` and ``List`` (without a resource), before the call is handled;
    ``ListAndWatch``, before a plugin's stream is opened; ``devices``, when a list has arrived.

    Attributes:
        at: moment -> a function that is called with the resource. It may wait, or raise
            ``TurnedAway``: then the caller gets that error, or the stream is not opened or is cut.
        passed: the moments without an error, each with its resource, across all restarts.
    """

    def __init__(self) -> None:
        self.at: dict[str, Callable[[str], object]] = {}
        self.passed: list[tuple[str, str]] = []

    def reach(self, moment: str, resource: str = "") -> None:
        """Call the function for this moment.

        Raises:
            TurnedAway: raised by the function.
        """
        fault = self.at.get(moment)
        if fault is not None:
            fault(resource)
        self.passed.append((moment, resource))

    def reach_in_call(self, context: grpc.ServicerContext, moment: str, resource: str = "") -> None:
        """Call the function for this moment in a call, which its error aborts."""
        try:
            self.reach(moment, resource)
        except TurnedAway as error:
            context.abort(error.code, str(error))

    def of(self, moment: str) -> list[str]:
        """Return the resources for which *moment* has passed, in order."""
        return [resource for each, resource in self.passed if each == moment]


class SocketServer:
    """A gRPC server on a unix socket that can stop normally or as if killed.

    Args:
        path: the socket; gRPC removes a stale file there.

    Raises:
        ValueError: *path* is longer than a socket address can be.
    """

    def __init__(self, path: Path, *, name: str, threads: int) -> None:
        if len(str(path).encode()) > LONGEST_PATH:
            raise ValueError(f"socket: must have at most {LONGEST_PATH} bytes: {path}")
        self.path = path
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.grpc = grpc.server(self._pool)

    def start(self) -> None:
        """Bind and serve.

        Raises:
            OSError: the socket cannot be bound.
        """
        try:
            self.grpc.add_insecure_port(f"unix://{self.path}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self.path}: {error}") from error
        self.grpc.start()

    def stop(self, *, leave_socket: bool = False) -> None:
        """Stop at once; calls in flight are cancelled.

        Args:
            leave_socket: leave the socket's file without a listener, as a killed process does.
        """
        aside = self.path.with_name(self.path.name + ".x")
        moved = leave_socket and self.path.exists()
        if moved:  # gRPC removes the file by its name, so it must not find it
            self.path.replace(aside)
        self.grpc.stop(grace=None).wait(1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if moved:
            aside.replace(self.path)
        elif not leave_socket:
            self.path.unlink(missing_ok=True)


def in_go_words(error: grpc.RpcError) -> str:
    """Return an error's text as grpc-go formats it, for the user's message (K9)."""
    call = cast(grpc.Call, error)  # an error raised by a stub is also its call
    code = call.code()
    # StatusCode.FAILED_PRECONDITION is FailedPrecondition in Go; CANCELLED has one l less.
    name = code.name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {name} desc = {call.details() or ''}"
