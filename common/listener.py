"""A listening socket, and a bounded number of clients."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_PAUSE_SECONDS = 0.05  # for those that were ended to give their descriptors back


class Listener:
    """Accepts clients, and serves each in a task that ends with it.

    An honest client has its first answer within milliseconds. So of too many clients the one goes
    that has waited longest without any answer, and one with an answer only when no other is left,
    the longest idle first. Whose handshake is not done is a client as well: asyncio's own server
    bounds neither.
    """

    def __init__(
        self,
        listening: socket.socket,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
        *,
        most: int,
        on_full: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            listening: is not closed here.
            serve: serves and closes one client; cancelled when the client has to go.
            most: clients at once.
            on_full: called for each client that had to go.
        """
        listening.settimeout(0)
        self._listening = listening
        self._serve = serve
        self._most = most
        self._on_full = on_full
        self._waiting: dict[asyncio.Task[None], None] = {}  # longest first
        self._answered: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Accept until cancelled; the clients stay."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._end_one()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._waiting) + len(self._answered) >= self._most:
                self._end_one()
            task = loop.create_task(self._serve(accepted))
            self._waiting[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # the others have their turn, however many come

    def answered(self, task: asyncio.Task[None]) -> None:
        """Note that the client which *task* serves has an answer."""
        if task in self._waiting or task in self._answered:
            self._forget(task)
            self._answered[task] = None

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._answered.pop(task, None)

    def _end_one(self) -> None:
        if tasks := self._waiting or self._answered:
            task = next(iter(tasks))
            self._forget(task)
            task.cancel()
            self._on_full()
