"""The agent that serves: lets others stand by, and hands over to one of them."""

import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agent.allocator.model.ledger_copy import Knowledge, encode, encode_rest
from agent.errors import HandoverError
from agent.handover.channel import Channel, listen
from agent.handover.lock import ServingLock

log = logging.getLogger(__name__)

PROTOCOL = 1
"""Raised when the messages change; agents that do not agree on it do not hand over."""
_WORD_SECONDS = 5.0
_REGISTER_SECONDS = 15.0
# After this long without a call the kubelet has none left that it meant for us.
_QUIET_SECONDS = 1.0
_QUIET_WITHIN = 10.0
_PATIENCE_SECONDS = 10.0
# One that has just become ready may not have been heard yet.
_HEAR_SECONDS = 0.5
_LOOK_SECONDS = 0.02


class Giving(Protocol):
    """What the agent that serves can be asked to do for a handover."""

    def pause(self) -> None:
        """Begin no call, write nothing to node or disk, and leave registering to another.

        Raises:
            HandoverError: a call does not end.
        """
        ...

    def knowledge(self) -> Knowledge:
        """Return what the kubelet's record does not tell."""
        ...

    def go_on(self, after: Callable[[], None]) -> None:
        """Answer calls again, *after* being called before each answer."""
        ...

    def resume(self) -> None:
        """Take everything back: the successor has died."""
        ...

    def idle(self) -> float:
        """Return the seconds since the last call."""
        ...

    def finish(self) -> None:
        """Write what is unwritten."""
        ...

    def connections(self) -> Sequence[int]:
        """Return the kubelet's connections, read no more from here on."""
        ...


class Predecessor:
    """Listens for agents that stand by, and hands over to the first that is ready."""

    def __init__(
        self,
        folder: Path,
        lock: ServingLock,
        *,
        at: Callable[[str], None] = lambda _step: None,
        quiet: float = _QUIET_SECONDS,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Listen from now on.

        Args:
            folder: where the agents of this node meet.
            lock: held by this agent.
            at: told of every step of a handover before it is made.
            quiet: seconds without a call after which the kubelet's connections are handed over.
            patience: seconds to wait for another standby when one has died midway.

        Raises:
            OSError: the socket cannot be made.
        """
        self._lock = lock
        self._at = at
        self._quiet = quiet
        self._patience = patience
        self._listener = listen(folder)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._changed = threading.Condition()
        self._standbys: dict[Channel, bool] = {}  # whether it is ready
        self._stopped = threading.Event()
        self._talking = threading.Lock()
        self._thread = threading.Thread(target=self._attend, name="handover", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; those that stand by see this agent gone when it ends."""
        self._stopped.set()
        self._thread.join(_WORD_SECONDS)
        self._listener.close()
        with self._changed:
            for channel in self._standbys:
                channel.close()
            self._standbys.clear()
        self._selector.close()

    def give(self, side: Giving) -> bool:
        """Hand over to one that stands by, trying the next where one dies.

        Returns:
            Whether this agent may exit at once, closing nothing: a successor serves. Otherwise
            nobody else serves, or it is not known who does, and it has to end in order.
        """
        until, failed = time.monotonic() + _HEAR_SECONDS, False
        while (channel := self._next(until)) is not None:
            try:
                self._hand_over(channel, side)
            except HandoverError as error:
                gone = channel.ended
                log.warning("handover failed", extra={"reason": str(error), "gone": gone})
                channel.close()
                if not gone:
                    return False  # it has the lock, and may serve at any moment
                side.resume()
                if not failed:
                    until, failed = time.monotonic() + self._patience, True
            else:
                return True
        return False

    # --- one handover -------------------------------------------------------------------

    def _hand_over(self, channel: Channel, side: Giving) -> None:
        """Make every step of a handover.

        Raises:
            HandoverError: the other has died, or does not do its part.
        """
        self._at("pause")
        side.pause()
        self._at("take")
        channel.send("take", files=[self._lock.descriptor])
        self._at("tell")
        self._tell(channel, side)
        self._at("await-registered")
        channel.expect("registered", _REGISTER_SECONDS)
        self._at("go-on")
        side.go_on(lambda: self._tell_after_call(channel, side))
        self._wait_quiet(channel, side)
        self._at("finish")
        side.finish()
        self._at("connections")
        connections = side.connections()
        with self._talking:
            channel.send_files("connections", connections)
            self._at("await-taken")
            channel.expect("taken", _WORD_SECONDS)
        self._at("exit")

    def _tell(self, channel: Channel, side: Giving) -> None:
        with self._talking:
            known = side.knowledge()
            for each in known.held:
                channel.send("holding", encode(each))
            channel.send("told", encode_rest(known))
            channel.expect("noted", _WORD_SECONDS)

    def _tell_after_call(self, channel: Channel, side: Giving) -> None:
        # Where the successor has died meanwhile, the handover itself notices.
        with contextlib.suppress(HandoverError):
            self._tell(channel, side)

    def _wait_quiet(self, channel: Channel, side: Giving) -> None:
        deadline = time.monotonic() + _QUIET_WITHIN
        while side.idle() < self._quiet and time.monotonic() < deadline:
            if channel.ended:
                raise HandoverError("the successor has ended")
            self._stopped.wait(_LOOK_SECONDS)

    # --- who stands by ------------------------------------------------------------------

    def _next(self, until: float) -> Channel | None:
        """Take one that is ready; wait for it until then."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(self._standbys.values()), max(0.0, until - time.monotonic())
            )
            for channel, ready in self._standbys.items():
                if ready:
                    del self._standbys[channel]
                    self._selector.unregister(channel)
                    return channel
        return None

    def _attend(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(_WORD_SECONDS / 20):
                if isinstance(key.fileobj, Channel):
                    self._hear(key.fileobj)
                else:
                    self._accept()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            log.warning("cannot accept", extra={"reason": str(error)})
            return
        try:
            channel = Channel(accepted)
        except HandoverError as error:
            log.warning("turned away", extra={"reason": str(error)})
            return
        with self._changed:
            self._standbys[channel] = False
            self._selector.register(channel, selectors.EVENT_READ)

    def _hear(self, channel: Channel) -> None:
        """Record that one is ready, or gone."""
        with self._changed:
            if channel not in self._standbys:
                return  # it is being handed over to
            try:
                message, _ = channel.expect("ready", 0)
                if message.get("protocol") != PROTOCOL:
                    raise HandoverError(f"it speaks protocol {message.get('protocol')!r}")
            except HandoverError as error:
                log.info("one stands by no more", extra={"reason": str(error)})
                del self._standbys[channel]
                self._selector.unregister(channel)
                channel.close()
                return
            self._standbys[channel] = True
            self._changed.notify_all()
        log.info("another agent stands by")
