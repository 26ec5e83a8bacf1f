"""The kubelet's calls wait for an instance that serves: of a device plugin, or of a driver.

The newest instance gets the calls (``roster.py``). If there is none, or it ends during a call, the
call waits for the next one, and is sent again. An instance that leaves a call unanswered for
``patience``, and then a test call, is silent: it gets calls again after it has responded. The
kubelet admits one pod at a time and waits long for a response, so every wait ends with an error.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from proxy.errors import Code, RpcFailed
from proxy.roster import Roster
from proxy.wire import GrpcPeer

log = logging.getLogger(__name__)

MOST_CALLS = 512
"""Most calls of one resource or driver at a time: more than a node has pods."""
_RECENT_SECONDS = 60.0
_TEST_CALL_SECONDS = 1.0
_AGAIN_SECONDS = 0.5

_BROKEN = frozenset({Code.UNAVAILABLE, Code.CANCELLED})
"""Status of a call if its instance ends. A running instance may return these as well."""
_AMBIGUOUS = frozenset({Code.UNKNOWN, Code.INTERNAL})
"""Status that a call may get from an instance that is ending; any other is a real response."""
_BROKEN_SECONDS, _AMBIGUOUS_SECONDS = 2.0, 0.02
"""Longest waits for an instance's end after such a status: its call may end first."""

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Starts a task and keeps a reference to it, which asyncio does not."""


class Instance(ABC):
    """One registration of a plugin or of a driver.

    Attributes:
        endpoint: file name of its socket.
        number: number of the registration; a higher one is newer.
        ended: set when it has ended, by the task that follows it.
    """

    def __init__(self, socket: Path, service: str, number: int) -> None:
        """Prepare; nothing is dialled. *service*: that of its calls, with its package."""
        self.endpoint = socket.name
        self.number = number
        self.peer = GrpcPeer(socket)
        self.ended = asyncio.Event()
        self._service = service

    async def call(self, method: str, request: bytes) -> bytes:
        """Make one call, without a timeout.

        Raises:
            RpcFailed: it ended with an error.
        """
        return await self.peer.call(f"/{self._service}/{method}", request)

    @abstractmethod
    async def test(self) -> None:
        """Make a call that a running instance answers at once, without a timeout.

        Raises:
            RpcFailed: it ended with an error.
        """

    async def close(self) -> None:
        """Disconnect; calls in progress are cancelled."""
        await self.peer.close()


I = TypeVar("I", bound=Instance)  # noqa: E741 -- an instance


class LogTexts(NamedTuple):
    """The log messages about the instances of one kind, and the name of the field before them."""

    field: str
    connected: str
    disconnected: str
    silent: str
    responding: str
    waiting: str
    repeated: str
    given_up: str


class CallWaits:
    """The waiting calls of one resource, or of one driver."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without calls; *clock* returns the event loop's seconds, in any thread."""
        self._clock = clock
        self._waiting: dict[object, float] = {}
        self._waited: deque[tuple[float, float]] = deque(maxlen=MOST_CALLS)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a call as waiting meanwhile."""
        token, began = object(), self._clock()
        self._waiting[token] = began
        try:
            yield
        finally:
            del self._waiting[token]
            now = self._clock()
            self._waited.append((now, now - began))

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return len(self._waiting)

    def longest(self) -> float:
        """Return the longest wait of a call now or within the last minute, in seconds."""
        now = self._clock()
        recent = (waited for end, waited in tuple(self._waited) if now - end < _RECENT_SECONDS)
        current = (now - since for since in tuple(self._waiting.values()))
        return max((*recent, *current), default=0.0)


class ProxiedService(ABC, Generic[I]):
    """One resource or driver: its instances, and the kubelet's calls to them.

    Attributes:
        patience: seconds that an instance has for a response, and that the kubelet is not told of
            a missing instance.
        longest_call: seconds that a call waits for an instance and its response; ``patience``,
            unless a driver sets it.
        registered: whether it is registered with the current kubelet.
        waits: the calls that wait for an instance.
        under_way: number of calls in progress.
        repeated: number of calls that were sent again.
        unanswered: number of calls that ended without an instance's response.
    """

    texts: LogTexts

    def __init__(
        self,
        name: str,
        *,
        patience: float,
        spawn: Spawn,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start without an instance; *on_change* is called when the instances have changed.

        All its waits follow the clock of the event loop that runs.
        """
        self._clock = asyncio.get_running_loop().time
        self.name = name
        self.patience = patience
        self.roster: Roster[I] = Roster()
        self.registered = False
        self.waits = CallWaits(self._clock)
        self.under_way = self.repeated = self.unanswered = 0
        self.longest_call = patience
        self._spawn = spawn
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._giving_up: asyncio.TimerHandle | None = None
        self._listening: set[I] = set()

    # --- instances ---------------------------------------------------------------------

    def update(self) -> None:
        """Wake all waiting tasks; start the timer of patience if no instance serves."""
        if self.roster.serving is not None:
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        else:
            if self._giving_up is None and not self.roster.given_up:
                loop = asyncio.get_running_loop()
                self._giving_up = loop.call_later(self.patience, self._end_patience)
            for each in self.roster.silent:
                self._listen(each)
        self.notify()
        self._on_change()

    def _end_patience(self) -> None:
        self._giving_up = None
        if self._give_up():
            self.update()

    def _give_up(self) -> bool:
        given_up = self.roster.give_up()
        if given_up:
            fields = {self.texts.field: self.name, "patience_seconds": self.patience}
            log.error(self.texts.given_up, extra=fields)
        return given_up

    async def _is_silent(self, instance: I) -> bool:
        """Test an instance that left a call unanswered; stop using it if it does not respond."""
        if await self._responds(instance, _TEST_CALL_SECONDS):
            return False
        if self.roster.mark_silent(instance):
            self.log(self.texts.silent, instance, patience_seconds=self.patience)
            if self.longest_call <= self.patience:  # the call has waited for all of it
                self._give_up()
            self.update()
            self._listen(instance)
        return True

    def _listen(self, instance: I) -> None:
        if instance not in self._listening:
            self._listening.add(instance)
            self._spawn(self._listen_for(instance))

    def _would_serve(self, instance: I) -> bool:
        serving = self.roster.serving
        return instance in self.roster and (serving is None or serving.number < instance.number)

    async def _listen_for(self, instance: I) -> None:
        """Use a silent instance again when it responds, unless a newer one serves."""
        try:
            while self._would_serve(instance):
                if await self._responds(instance, self.patience) and self._would_serve(instance):
                    self.roster.mark_responding(instance)
                    self.log(self.texts.responding, instance)
                    self.update()
                    return
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._listening.discard(instance)

    async def _responds(self, instance: I, within: float) -> bool:
        """Return whether an instance responds to a test call, also with an error."""
        try:
            async with asyncio.timeout(within):
                await instance.test()
        except TimeoutError:
            return False
        except RpcFailed as failure:
            return failure.code not in _BROKEN
        return True

    # --- calls -------------------------------------------------------------------------

    @contextmanager
    def counting_call(self) -> Iterator[None]:
        """Count a call as in progress meanwhile.

        Raises:
            RpcFailed: there are too many.
        """
        if self.under_way >= MOST_CALLS:
            raise RpcFailed(
                Code.RESOURCE_EXHAUSTED,
                f"{MOST_CALLS} calls for {self.name} are under way in the device plugin proxy",
            )
        self.under_way += 1
        try:
            yield
        except asyncio.CancelledError:  # by the kubelet's end, or the proxy's
            self.unanswered += 1
            raise
        finally:
            self.under_way -= 1

    async def forward(self, method: str, request: bytes) -> bytes:
        """Forward a call; wait for an instance and send it again until its time is over.

        Raises:
            RpcFailed: the instance's own error, or none has responded in time.
        """
        began = self._clock()
        until = began + self.longest_call
        while True:
            instance = self.roster.serving
            if instance is None:
                if not await self._wait_for_instance(until - self._clock()):
                    raise self._without_response(began)
                continue
            try:
                return await self._call(instance, method, request, until)
            except TimeoutError as error:
                if self._clock() >= until:
                    raise self._without_response(began, method) from error
                reason = "silent"
            except RpcFailed as failure:
                if not await self._has_ended(instance, failure):
                    raise
                if self._clock() > until:
                    self.unanswered += 1
                    raise
                reason = str(failure)
            self.repeated += 1
            self.log(self.texts.repeated, instance, call=method, reason=reason)

    async def _call(self, instance: I, method: str, request: bytes, until: float) -> bytes:
        """Make a call; test the instance each time that ``patience`` is over.

        Raises:
            RpcFailed: it ended with an error.
            TimeoutError: the instance is silent, or the time is over.
        """
        call = asyncio.create_task(instance.call(method, request))
        try:
            while not call.done():
                rest = max(until - self._clock(), 0)
                await asyncio.wait({call}, timeout=min(self.patience, rest))
                silent = not call.done() and await self._is_silent(instance)
                if not call.done() and (silent or self._clock() >= until):
                    raise TimeoutError
            return call.result()
        finally:
            call.cancel()

    async def _wait_for_instance(self, within: float) -> bool:
        """Wait until an instance serves, or the instances are given up; return whether one does."""
        if not self.waits.waiting and not self.roster.given_up:
            log.warning(self.texts.waiting, extra={self.texts.field: self.name})
        with self.waits.wait():
            await self.until(
                lambda: self.roster.serving is not None or self.roster.given_up, within
            )
        return self.roster.serving is not None

    def _without_response(self, began: float, method: str = "") -> RpcFailed:
        self.unanswered += 1
        text = self.overdue(method, self._clock() - began)
        return RpcFailed(Code.UNAVAILABLE, text)

    @abstractmethod
    def overdue(self, method: str, waited: float) -> str:
        """Return the error of a call without a response.

        Args:
            method: its name if an instance has been called; empty if there was none.
            waited: seconds since the kubelet's call.
        """

    async def _has_ended(self, instance: I, failure: RpcFailed) -> bool:
        """Return whether a call failed because its instance ended, not by its response."""

        def has_ended() -> bool:
            return instance.ended.is_set() or self.roster.serving is not instance

        if failure.code in _BROKEN:
            return await self.until(has_ended, _BROKEN_SECONDS) or not instance.peer.connected
        return failure.code in _AMBIGUOUS and await self.until(
            instance.ended.is_set, _AMBIGUOUS_SECONDS
        )

    # --- waiting -----------------------------------------------------------------------

    def notify(self) -> None:
        """Wake all tasks that wait for a condition."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait until a condition holds, checked after every change; return whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not condition():
                    await self._changed.wait()
        return condition()

    def log(self, message: str, instance: I, **fields: object) -> None:
        """Log a line about an instance."""
        named = {self.texts.field: self.name, "endpoint": instance.endpoint}
        log.info(message, extra={**named, **fields})
