"""Kubernetes Events: what an author or an admin should see with ``kubectl describe``."""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from common.backoff import Backoff, pause_after

log = logging.getLogger(__name__)

_COMPONENT = "gpu-turnstile"
_LONGEST_MESSAGE = 1024
"""The API server takes no more (``events.k8s.io`` validation)."""

_MOST_WAITING = 256
_MOST_REMEMBERED = 1024
_BACKOFF_SECONDS = (0.2, 30.0)
_CONFLICT, _NOT_FOUND = 409, 404
# Another writer was faster (409), or the permission comes after the agent (401, 403). A namespace
# that is being deleted answers 403 for ever: so many tries, over about two minutes, are enough.
_MAY_PASS = frozenset({401, 403, 409})
_MOST_TRIES = 10


class _ExpiredError(Exception):
    """The event that was to be counted up is no longer kept: events live for an hour."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is to be written of one notice.

    Attributes:
        count: how often it was told since it was written last.
        at: when it was told last, seconds since 1970.
        tries: how often it was refused.
        due: when it may be tried, by the monotonic clock.
    """

    count: int = 0
    at: float = 0.0
    tries: int = 0
    due: float = 0.0


class EventApi(Protocol):
    """The part of the API that events are written through."""

    def create_event(self, namespace: str, event: Json) -> None:
        """Create an event."""

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an event."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell: its reason in one word, for machines and columns, and a sentence."""

    subject: Subject
    reason: str
    message: str
    warning: bool = True


class EventQueue:
    """The queue: one thread writes, what is told again is counted and not repeated.

    Events are for people: they are never waited for, the oldest are dropped when the API
    server is away for long, and nothing depends on them.
    """

    def __init__(
        self,
        *,
        api: EventApi,
        node: str,
        clock: Callable[[], float] = time.time,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """Start empty; *on_result* is told ``written``, ``retried`` or ``dropped``."""
        self._api = api
        self._node = node
        self._clock = clock
        self._on_result = on_result
        self._changed = threading.Condition()
        self._stopping = False
        self._waiting: OrderedDict[Notice, _Entry] = OrderedDict()
        self._told: OrderedDict[Notice, int] = OrderedDict()

    def put(self, notice: Notice) -> None:
        """Queue a notice."""
        now = self._clock()
        with self._changed:
            before = self._waiting.pop(notice, _Entry())
            self._waiting[notice] = replace(before, count=before.count + 1, at=now)
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[self._least()]
                self._on_result("dropped")
            self._changed.notify()

    def stop(self) -> None:
        """Make :meth:`run` return; what is unwritten is in the log."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Write until stopped."""
        pauses = Backoff(*_BACKOFF_SECONDS)
        while (due := self._next()) is not None:
            notice, entry = due
            try:
                self._write(notice, entry)
            except _ExpiredError:
                self._told.pop(notice, None)
                self._again(notice, entry)
            except (Rejected, Gone) as error:
                self._refused(notice, entry, error)
            except Unavailable as error:
                log.info("event waits", extra={"reason": str(error)})
                self._on_result("retried")
                self._again(notice, entry)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, pauses.next())
                continue
            else:
                self._on_result("written")
            pauses.reset()

    def _next(self) -> tuple[Notice, _Entry] | None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                for notice, entry in self._waiting.items():
                    if entry.due <= now:
                        return notice, self._waiting.pop(notice)
                due = min((each.due for each in self._waiting.values()), default=None)
                self._changed.wait(None if due is None else due - now)
            return None

    def _least(self) -> Notice:
        """Choose what to drop: the oldest notice of a pod. Notices of the node are told once."""
        pods = (each for each in self._waiting if each.subject.kind == "Pod")
        return next(pods, next(iter(self._waiting)))

    def _refused(self, notice: Notice, entry: _Entry, error: Rejected | Gone) -> None:
        """Try again later what the API server may take later; drop everything else."""
        passes = isinstance(error, Rejected) and error.status in _MAY_PASS
        if not passes or entry.tries + 1 >= _MOST_TRIES:
            log.info("event not written", extra={"reason": str(error)})
            self._on_result("dropped")
            return
        log.info("event waits", extra={"reason": str(error)})
        self._on_result("retried")
        pause = pause_after(entry.tries + 1, *_BACKOFF_SECONDS)
        self._again(notice, replace(entry, tries=entry.tries + 1, due=time.monotonic() + pause))

    def _again(self, notice: Notice, entry: _Entry) -> None:
        with self._changed:
            more = self._waiting.pop(notice, _Entry(at=entry.at))
            self._waiting[notice] = replace(entry, count=entry.count + more.count, at=more.at)
            self._waiting.move_to_end(notice, last=False)

    def _write(self, notice: Notice, entry: _Entry) -> None:
        count = entry.count
        namespace = notice.subject.namespace or "default"  # where events of nodes live
        event = describe(notice, node=self._node, count=count, at=entry.at)
        known = self._told.get(notice)
        patch = {"lastTimestamp": event["lastTimestamp"]}
        if known is not None:
            count += known
            self._patch(namespace, event["metadata"]["name"], patch | {"count": count})
        else:
            try:
                self._api.create_event(namespace, event)
            except Rejected as error:
                if error.status != _CONFLICT:
                    raise
                # Told before this agent was started: how often is not known any more.
                self._patch(namespace, event["metadata"]["name"], patch)
        self._told[notice] = count
        self._told.move_to_end(notice)
        while len(self._told) > _MOST_REMEMBERED:
            self._told.popitem(last=False)

    def _patch(self, namespace: str, name: str, patch: Json) -> None:
        try:
            self._api.patch_event(namespace, name, patch)
        except Rejected as error:
            if error.status != _NOT_FOUND:
                raise
            raise _ExpiredError from error


def describe(notice: Notice, *, node: str, count: int, at: float) -> Json:
    """Make the event object, core/v1; *at* is in seconds since 1970.

    Its name follows from what it says, so that the same thing told twice is one event.
    """
    subject = notice.subject
    text = "\0".join((subject.kind, subject.uid, notice.reason, notice.message, node))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reference = {
        "apiVersion": "v1",
        "kind": subject.kind,
        "name": subject.name,
        "uid": subject.uid,
        **({"namespace": subject.namespace} if subject.namespace else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{subject.name[:200].rstrip('-.')}.{digest}"},
        "involvedObject": reference,
        "reason": notice.reason,
        "message": notice.message[:_LONGEST_MESSAGE],
        "type": "Warning" if notice.warning else "Normal",
        "source": {"component": _COMPONENT, "host": node},
        "reportingComponent": _COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": count,
    }
