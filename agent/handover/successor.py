"""The agent that stands by: waits, takes over, and holds what its predecessor leaves."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agent.allocator.model.ledger_copy import Held, Knowledge, decode, decode_rest
from agent.errors import HandoverError
from agent.handover.channel import Channel
from agent.handover.lock import ServingLock
from agent.handover.predecessor import PROTOCOL

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_WORD_SECONDS = 5.0


class Taking(Protocol):
    """What the agent that stands by can be asked to do for a handover."""

    def take(self, known: Knowledge) -> None:
        """Serve from now on, knowing what the predecessor knew; return once registered."""
        ...

    def note(self, known: Knowledge) -> None:
        """Learn what the predecessor has answered meanwhile."""
        ...

    def hold(self, connections: Sequence[int]) -> None:
        """Keep the kubelet's connections open."""
        ...


def stand_by(
    folder: Path,
    side: Taking,
    stop: threading.Event,
    *,
    on_take: Callable[[ServingLock], None],
    at: Callable[[str], None] = lambda _step: None,
) -> ServingLock | None:
    """Wait for the agent that serves to hand over, and take over.

    Args:
        folder: where the agents of this node meet.
        side: does what there is to do.
        stop: ends the wait.
        on_take: told that both hold the lock now.
        at: told of every step before it is made.

    Returns:
        The lock, once the predecessor has exited; ``None`` where it went before it began to
        hand over, or *stop* was set.

    Raises:
        HandoverError: nobody serves there.
    """
    channel = Channel.connect(folder)
    try:
        at("ready")
        channel.send("ready", {"protocol": PROTOCOL})
        log.info("standing by")
        if not _wait(channel, stop):
            return None
        try:
            _, files = channel.expect("take", _WORD_SECONDS)
        except HandoverError:
            return None
        lock = _lock_of(files)
        log.info("taking over")
        on_take(lock)
        at("take")
        _succeed(channel, side, stop, at)
        return lock
    finally:
        channel.close()


def _succeed(
    channel: Channel, side: Taking, stop: threading.Event, at: Callable[[str], None]
) -> None:
    """Take over, and listen to the predecessor for as long as it lives."""
    known = Knowledge()
    try:
        known = _collect(channel)
        at("noted")
        channel.send("noted")
    except HandoverError as error:  # it died: what the kubelet's record tells has to do
        log.warning("the predecessor has ended", extra={"reason": str(error)})
    at("register")
    side.take(known)
    try:
        at("registered")
        channel.send("registered")
        while _wait(channel, stop):
            message, files = channel.receive(_WORD_SECONDS)
            if message.get("step") == "connections":
                at("hold")
                side.hold(files)
                if message.get("last"):
                    at("taken")
                    channel.send("taken")
            else:
                side.note(_collect(channel, message))
                channel.send("noted")
    except HandoverError as error:
        log.info("the predecessor has ended", extra={"reason": str(error)})
    at("alone")


def _collect(channel: Channel, first: object = None) -> Knowledge:
    """Read what containers hold, and all that ``told`` says.

    Raises:
        HandoverError: the predecessor has ended.
    """
    held: list[Held] = []
    message = first if isinstance(first, dict) else channel.receive(_WORD_SECONDS)[0]
    while message.get("step") != "told":
        try:
            held.append(decode(message))
        except ValueError as error:  # of another version, perhaps; List tells most of it
            log.warning("not understood", extra={"reason": str(error)})
        message, _ = channel.receive(_WORD_SECONDS)
    try:
        return decode_rest(message, held)
    except ValueError as error:
        log.warning("not understood", extra={"reason": str(error)})
        return Knowledge(held)


def _wait(channel: Channel, stop: threading.Event) -> bool:
    """Wait until there is a message, or the peer has gone; tell whether to go on."""
    while not stop.is_set():
        if channel.wait(_LOOK_SECONDS):
            return True
    return False


def _lock_of(files: Sequence[int]) -> ServingLock:
    if len(files) != 1:
        for each in files:
            os.close(each)
        raise HandoverError(f"take: {len(files)} files came instead of the lock")
    return ServingLock(files[0])
