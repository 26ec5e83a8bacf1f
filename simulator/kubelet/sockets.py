"""gRPC over unix sockets: serving on one, dying on one, and errors in Go's words."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import grpc

from simulator.kubelet.errors import TurnedAway

LONGEST_PATH = 107
"""``sun_path`` has 108 bytes, one of them for the terminating zero."""


class Misbehavior:
    """What happens at a kubelet's sockets beside what should; nothing, unless somebody plugs it in.

    Moments: ``Register`` and ``List`` (of no resource), before the call is answered;
    ``ListAndWatch``, before a plugin's stream is opened; ``devices``, when a list has come.

    Attributes:
        at: by moment, what happens. It is given the resource; it may wait, or raise ``TurnedAway``:
            the caller gets that, a stream is not opened, or is cut.
        passed: the moments that went well, each with its resource, over all lives.
    """

    def __init__(self) -> None:
        self.at: dict[str, Callable[[str], object]] = {}
        self.passed: list[tuple[str, str]] = []

    def reach(self, moment: str, resource: str = "") -> None:
        """Let happen what happens at this moment.

        Raises:
            TurnedAway: it does not go on.
        """
        happens = self.at.get(moment)
        if happens is not None:
            happens(resource)
        self.passed.append((moment, resource))

    def meet_caller(self, context: grpc.ServicerContext, moment: str, resource: str = "") -> None:
        """Do the same in a call, which ends if it does not go on."""
        try:
            self.reach(moment, resource)
        except TurnedAway as error:
            context.abort(error.code, str(error))

    def of(self, moment: str) -> list[str]:
        """Return the resources of one moment, in order."""
        return [resource for each, resource in self.passed if each == moment]


class SocketServer:
    """A gRPC server on a unix socket that can end well or as if killed.

    Args:
        path: the socket; a stale file there is removed by gRPC.

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
        """End at once; calls under way are cancelled.

        Args:
            leave_socket: leave the socket's file behind with nobody listening, as a
                process leaves it that is killed.
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
    """Render an error as grpc-go does, for the message a user will read (K9)."""
    call = cast(grpc.Call, error)  # every error that a stub raises is its call, too
    code = call.code()
    # StatusCode.FAILED_PRECONDITION is FailedPrecondition in Go; CANCELLED has one l less.
    name = code.name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {name} desc = {call.details() or ''}"
