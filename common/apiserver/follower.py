"""Following a collection: list it, watch it, list it again when the watch cannot go on."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from common.apiserver.client import Json
from common.apiserver.errors import Gone, Rejected
from common.backoff import Backoff, Jitter, by_chance
from common.errors import Unavailable

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.2, 10.0)
# The API server ends a watch after minutes. One that ends sooner than this has failed, whatever
# the server says: opened again without a pause, it would be opened a thousand times a second.
_SHORT_WATCH_SECONDS = 1.0


class Collection(Protocol):
    """A collection of the API server, and what becomes of what it shows."""

    def list(self) -> str:
        """Read all objects; return the resource version to watch from."""
        ...

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream events from a version on."""
        ...

    def apply(self, kind: str, obj: Json) -> None:
        """Take one event but a bookmark in."""
        ...


@contextmanager
def passing_over(kind: str, obj: Json) -> Iterator[None]:
    """Log what is wrong with one object, so that it does not end the thread that follows all."""
    try:
        yield
    except Exception:
        metadata = obj["metadata"]
        name = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}".strip("/")
        log.exception("object passed over", extra={"kind": kind, "object": name})


class Follower:
    """Follows one collection. :meth:`run` belongs to one thread."""

    def __init__(
        self,
        collection: Collection,
        *,
        trouble: str,
        clock: Callable[[], float] = time.monotonic,
        jitter: Jitter = by_chance,
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`.

        Args:
            collection: which, and where its objects go.
            trouble: the log line for a list or watch that fails.
            clock: seconds, monotonic.
            jitter: source of randomness for pauses.
        """
        self._collection = collection
        self._trouble = trouble
        self._clock = clock
        self._jitter = jitter
        self._wanted = 0  # lists asked for
        self._done = -1  # of these, the newest that a whole list has begun after

    def list_again(self) -> int:
        """Ask for a list that begins after this call.

        The watch in progress must be ended by the caller, who knows its client.

        Returns:
            The number by which :meth:`has_listed` knows it.
        """
        self._wanted += 1
        return self._wanted

    def has_listed(self, number: int = 0) -> bool:
        """Return whether a list that began after *number* was asked for has been read."""
        return self._done >= number

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*; list again whenever the watch cannot go on."""
        pauses = Backoff(*_BACKOFF_SECONDS, jitter=self._jitter)
        _, longest = _BACKOFF_SECONDS
        while not stop.is_set():
            began = self._clock()
            wanted = self._wanted
            try:
                version = self._collection.list()
                self._done = max(self._done, wanted)
                self._watch(version, stop)
                if self._wanted != wanted:
                    continue  # asked for: nothing has failed
            except Gone as error:
                log.info("watch expired, listing again", extra={"reason": str(error)})
            except (Unavailable, Rejected) as error:
                if stop.is_set():
                    return
                if self._wanted != wanted and self._done == wanted:
                    continue  # the watch was ended for a new list
                log.warning(self._trouble, extra={"reason": str(error)})
            # A list that succeeds says little: the watch may go on being refused at once.
            if self._clock() - began > longest:
                pauses.reset()
            stop.wait(pauses.next())

    def _watch(self, version: str, stop: threading.Event) -> None:
        """Follow the watch, opening it again from where it ended."""
        pauses = Backoff(*_BACKOFF_SECONDS, jitter=self._jitter)
        while not stop.is_set() and self._done == self._wanted:
            began, brought = self._clock(), False
            for kind, obj in self._collection.watch(version):
                brought = True
                version = obj["metadata"].get("resourceVersion", version)
                if kind in ("ADDED", "MODIFIED", "DELETED"):
                    self._collection.apply(kind, obj)
            short = self._clock() - began < _SHORT_WATCH_SECONDS
            if brought or not short:
                pauses.reset()
            if short and self._done == self._wanted:
                stop.wait(pauses.next())
