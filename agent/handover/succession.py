"""Who serves a node: the first agent to take the lock, and after it whoever it hands over to."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agent.errors import HandoverError
from agent.handover.lock import ServingLock, folder_of
from agent.handover.predecessor import Giving, Predecessor
from agent.handover.successor import Taking, stand_by
from common.backoff import Backoff

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_WARM_SECONDS = 0.05
_BACKOFF_SECONDS = 0.01, 1.0


class Side(Giving, Taking, Protocol):
    """An agent that has loaded everything."""

    @property
    def warm(self) -> bool:
        """Whether it could answer calls at once."""
        ...

    def warm_up(self) -> None:
        """Do once what takes longer the first time."""
        ...

    def begin(self, *, since: float | None) -> None:
        """Serve from now on; does nothing where it does already.

        Args:
            since: when the agent before has ended, by the monotonic clock, where it is known.
        """
        ...


class Succession:
    """One agent's part among those of its node."""

    def __init__(
        self,
        plugin_dir: Path,
        *,
        on_lead: Callable[[str], None],
        at: Callable[[str], None] = lambda _step: None,
    ) -> None:
        """Prepare.

        Args:
            plugin_dir: the kubelet's device plugin directory.
            on_lead: told once this agent is the one that serves, and how that came: ``start``
                (nobody served), ``death`` (the one that it stood by for has died) or
                ``handover``.
            at: told of every step of a handover before it is made.
        """
        self._plugin_dir = plugin_dir
        self._folder = folder_of(plugin_dir)
        self._on_lead = on_lead
        self._at = at
        self._changed = threading.Condition()
        self._side: Side | None = None
        self._predecessor: Predecessor | None = None
        self._lock: ServingLock | None = None
        self._blocked = False
        self._alone_since: float | None = None
        self.problem = ""
        """Why this agent can neither serve nor stand by; empty where it can."""

    @property
    def another_serves(self) -> bool:
        """Whether another agent holds the lock."""
        return self._blocked

    def loaded(self, side: Side) -> None:
        """Record that this agent can serve from now on."""
        with self._changed:
            self._side = side
            self._changed.notify_all()

    @property
    def standing_by(self) -> bool:
        """Whether this agent could serve at once, and another does."""
        return self._side is not None and self._side.warm and self._blocked

    def wake(self) -> None:
        """Wake ``run``, so that it checks whether to stop."""
        with self._changed:
            self._changed.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Serve or stand by until *stop*."""
        lock, how = self._stand(stop)
        if lock is None:
            return
        self._lead(lock, how)
        backoff = Backoff(*_BACKOFF_SECONDS)
        while not stop.is_set():
            try:
                self._keep()
            except OSError as error:
                self._tell(str(error))
                stop.wait(backoff.next())
                continue
            self.problem = ""
            backoff.reset()
            side = self._wait_loaded(_LOOK_SECONDS, stop)
            if side is not None:
                side.begin(since=self._alone_since)
                stop.wait(_LOOK_SECONDS)

    def hand_over(self) -> bool:
        """Hand over to an agent that stands by, if there is one.

        Returns:
            Whether this process may exit at once, closing nothing. It has to end in order
            otherwise.
        """
        if self._predecessor is None or self._side is None:
            return False
        return self._predecessor.give(self._side)

    def close(self) -> None:
        """End; the next agent may serve."""
        if self._predecessor is not None:
            self._predecessor.close()
        if self._lock is not None:
            self._lock.release()

    # --- inside ------------------------------------------------------------------------

    def _stand(self, stop: threading.Event) -> tuple[ServingLock | None, str]:
        """Take the lock, standing by for as long as another has it."""
        backoff, how = Backoff(*_BACKOFF_SECONDS), "start"
        while not stop.is_set():
            try:
                lock = self._take()
            except OSError as error:
                self._tell(str(error))
                stop.wait(backoff.next())
                continue
            self.problem = ""
            self._blocked = lock is None
            if lock is not None:
                return lock, how
            side = self._wait_loaded(0.05, stop)
            if side is None or not side.warm:
                stop.wait(_WARM_SECONDS)
                continue
            side.warm_up()
            try:
                lock = stand_by(self._folder, side, stop, at=self._at, on_take=self._took)
            except HandoverError as error:
                log.debug("nobody to stand by for", extra={"reason": str(error)})
                stop.wait(backoff.next())
                continue
            backoff.reset()
            if lock is not None:
                return lock, "handover"
            how, self._alone_since = "death", time.monotonic()
        return None, how

    def _took(self, lock: ServingLock) -> None:
        """Lead, though the predecessor still answers."""
        self._lead(lock, "handover")

    def _take(self) -> ServingLock | None:
        """Take the lock where it is free.

        Raises:
            OSError: there is no plugin directory, or it cannot be written to.
        """
        if not self._plugin_dir.is_dir():
            raise FileNotFoundError(f"waiting for the plugin directory {self._plugin_dir}")
        return ServingLock.try_take(self._folder)

    def _lead(self, lock: ServingLock, how: str) -> None:
        if self._lock is None:
            self._lock = lock
            self._blocked = False
            self._on_lead(how)

    def _keep(self) -> None:
        """Keep the lock and listen, also where the folder was removed.

        Raises:
            OSError: the folder cannot be used, or another agent has replaced it.
        """
        if self._lock is None or not self._lock.covers(self._folder):
            lock = self._take()
            if lock is None:
                raise PermissionError(f"another agent serves this node: {self._folder} is its own")
            if self._lock is not None:
                self._lock.release()
            self._lock = lock
            if self._predecessor is not None:
                self._predecessor.close()
                self._predecessor = None
        if self._predecessor is None:
            self._predecessor = Predecessor(self._folder, self._lock, at=self._at)

    def _wait_loaded(self, seconds: float, stop: threading.Event) -> Side | None:
        with self._changed:
            self._changed.wait_for(lambda: self._side is not None or stop.is_set(), seconds)
            return self._side

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot serve yet", extra={"reason": problem})
        self.problem = problem
