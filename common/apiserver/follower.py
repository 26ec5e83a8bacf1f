"""Follows collections: lists them, watches them, and lists again if a watch cannot continue."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from common.apiserver.client import Client, Json, pages
from common.apiserver.errors import Gone, Rejected
from common.backoff import Backoff, Jitter, by_chance
from common.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

_BACKOFF_SECONDS = (0.2, 10.0)
# The API server ends a watch after minutes. A watch that ends sooner than this has failed, even
# without an error: without a pause it would be opened again a thousand times a second.
_SHORT_WATCH_SECONDS = 1.0


@contextmanager
def skipping_unreadable(kind: str, obj: Json) -> Iterator[None]:
    """Log an error about one object, so that it does not end the thread that follows all."""
    try:
        yield
    except Exception:
        metadata = obj["metadata"]
        name = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}".strip("/")
        log.exception("object passed over", extra={"kind": kind, "object": name})


@dataclass(kw_only=True)
class Collection(Generic[T]):
    """A collection of the API server, and what takes its objects.

    Attributes:
        client: sends the requests.
        path: path of the collection.
        kind: what an object is, for logs, such as ``pod``.
        read: reads an object; ``None`` if it is of no use: it is dropped, as if it were gone.
        replace: takes all objects of a list instead of those known before. It iterates once, to the
            end. Pages are requested meanwhile, so errors of requests may be raised, and it must not
            hold a lock.
        put: takes an object that is new or has changed.
        drop: called with an object that is gone, or is of no use any more.
        query: selectors.
        limit: see :func:`common.apiserver.client.pages`.
        progress: called after each page of a list with the number of objects so far.
    """

    client: Client
    path: str
    kind: str
    read: Callable[[Json], T | None]
    replace: Callable[[Iterable[T]], None]
    put: Callable[[T], None]
    drop: Callable[[Json], None]
    query: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = 500
    progress: Callable[[int], None] = lambda _count: None

    def list(self) -> str:
        """Read all objects; return the resource version to watch from.

        Raises:
            Gone: its pages took too long.
            Rejected: the API server rejects the request.
            Unavailable: no usable response.
        """
        version, count = "", 0

        def listed() -> Iterator[T]:
            nonlocal version, count
            found = pages(self.client, self.path, self.query, limit=self.limit)
            for objects, version in found:  # noqa: B007 - of the last page
                for obj in objects:
                    value = None
                    with skipping_unreadable(self.kind, obj):
                        value = self.read(obj)
                    if value is not None:
                        yield value
                count += len(objects)
                self.progress(count)

        self.replace(listed())
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream events from a version on, as :meth:`common.apiserver.client.Client.watch` does."""
        return self.client.watch(self.path, {**self.query, "resourceVersion": version})

    def apply(self, event: str, obj: Json) -> None:
        """Apply one event; bookmarks are not passed."""
        with skipping_unreadable(self.kind, obj):
            found = None if event == "DELETED" else self.read(obj)
            if found is None:
                self.drop(obj)
            else:
                self.put(found)


class Follower:
    """Follows one collection. :meth:`run` belongs to one thread."""

    def __init__(
        self,
        collection: Collection[Any],
        *,
        trouble: str,
        clock: Callable[[], float] = time.monotonic,
        jitter: Jitter = by_chance,
    ) -> None:
        """Prepare; no request is made before :meth:`run`.

        The log message *trouble* is written if a list or watch fails; *clock* is monotonic, in
        seconds.
        """
        self._collection = collection
        self._trouble = trouble
        self._clock = clock
        self._jitter = jitter
        self._wanted = 0  # number of requested lists
        self._done = -1  # the newest of these requests that a completed list covers

    def list_again(self) -> int:
        """Request a list that begins after this call.

        The caller, which has the client, must end the watch in progress.

        Returns:
            The number of the request, for :meth:`has_listed`.
        """
        self._wanted += 1
        return self._wanted

    def has_listed(self, number: int = 0) -> bool:
        """Return whether a list that began after request *number* has been read."""
        return self._done >= number

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*; list again if the watch cannot continue."""
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
                    continue  # a new list was requested: nothing has failed
            except Gone as error:
                log.info("watch expired, listing again", extra={"reason": str(error)})
            except (Unavailable, Rejected) as error:
                if stop.is_set():
                    return
                if self._wanted != wanted and self._done == wanted:
                    continue  # the watch was ended for a new list
                log.warning(self._trouble, extra={"reason": str(error)})
            # A successful list is not enough: the watch may still be rejected at once.
            if self._clock() - began > longest:
                pauses.reset()
            stop.wait(pauses.next())

    def _watch(self, version: str, stop: threading.Event) -> None:
        """Follow the watch; when it ends, open it again from the last version."""
        pauses = Backoff(*_BACKOFF_SECONDS, jitter=self._jitter)
        while not stop.is_set() and self._done == self._wanted:
            began, has_events = self._clock(), False
            for kind, obj in self._collection.watch(version):
                has_events = True
                version = obj["metadata"].get("resourceVersion", version)
                if kind in ("ADDED", "MODIFIED", "DELETED"):
                    self._collection.apply(kind, obj)
            short = self._clock() - began < _SHORT_WATCH_SECONDS
            if has_events or not short:
                pauses.reset()
            if short and self._done == self._wanted:
                stop.wait(pauses.next())


class Followers:
    """Several collections, each followed in a thread of its own."""

    def __init__(self, **followers: Follower) -> None:
        """Prepare; no request is sent before :meth:`start`. A thread's name is ``watch-<name>``."""
        self._followers = tuple(followers.values())
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=each.run, args=(self._stop,), name=f"watch-{name}", daemon=True)
            for name, each in followers.items()
        ]

    def start(self) -> None:
        """Start the threads; returns at once."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """Let the threads end soon; the caller closes the client."""
        self._stop.set()

    def ended(self) -> list[str]:
        """Return the names of threads that have ended unexpectedly, by a bug."""
        if self._stop.is_set():
            return []
        return [each.name for each in self._threads if each.ident and not each.is_alive()]

    @property
    def in_step(self) -> bool:
        """Whether all collections have been listed, and are watched since."""
        return all(each.has_listed() for each in self._followers)
