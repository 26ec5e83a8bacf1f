"""Kubernetes Events, which authors and admins see with ``kubectl describe``."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.write_queue import HopelessWrite, WriteQueue, remember
from common.apiserver.events import Notice, create, describe

log = logging.getLogger(__name__)

_MOST_WAITING = 256
_BACKOFF_SECONDS = (0.2, 30.0)
# Another writer was faster (409), or the permission is granted later (401, 403). For a namespace
# that is being deleted the response is always 403: so many tries, over two minutes, are enough.
_MAY_PASS = frozenset({401, 403, 409})
_MOST_REFUSALS = 10


@dataclass(frozen=True, slots=True)
class _Repeats:
    """The repetitions of one notice that are not written yet.

    Attributes:
        count: how often it was put since it was last written.
        at: when it was last put, seconds since 1970.
    """

    count: int
    at: float


class EventQueue(WriteQueue[Notice, _Repeats]):
    """The queue of Events: a repeated notice raises the count of its Event.

    Events are for people: nothing waits for them or depends on them, and the oldest are dropped if
    the API server is unavailable for long.
    """

    def __init__(
        self,
        *,
        api: Api,
        node: str,
        clock: Callable[[], float] = time.time,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """Start empty; *clock* returns the seconds since 1970."""
        super().__init__(
            backoff=_BACKOFF_SECONDS,
            on_result=on_result,
            most_waiting=_MOST_WAITING,
            most_refusals=_MOST_REFUSALS,
        )
        self._api = api
        self._node = node
        self._now = clock
        self._counts: OrderedDict[Notice, int] = OrderedDict()

    def put(self, notice: Notice) -> None:
        """Queue a notice."""
        self._enqueue(notice, _Repeats(1, self._now()))

    def _merge(self, older: _Repeats, newer: _Repeats) -> _Repeats:
        return _Repeats(older.count + newer.count, newer.at)

    def _drops_first(self, key: Notice) -> bool:
        return key.subject.kind == "Pod"  # notices of the node are put once

    def _write(self, key: Notice, item: _Repeats) -> None:
        try:
            remember(self._counts, key, self._create_or_count_up(key, item))
        except Gone as error:
            raise HopelessWrite(str(error)) from error
        except Rejected as error:
            if error.status not in _MAY_PASS:
                raise HopelessWrite(str(error)) from error
            raise

    def _log_failure(self, key: Notice, error: Exception, *, dropped: bool) -> None:  # noqa: ARG002
        message = "event not written" if dropped else "event waits"
        log.info(message, extra={"reason": str(error)})

    def _create_or_count_up(self, notice: Notice, new: _Repeats) -> int:
        """Write an Event; return how often it was reported, as far as that is known."""
        event = describe(notice, node=self._node, count=new.count, at=new.at)
        patch = {"lastTimestamp": event["lastTimestamp"]}
        namespace, name = notice.namespace, event["metadata"]["name"]
        known = self._counts.get(notice)
        if known is not None:
            count = known + new.count
            if self._patch(namespace, name, patch | {"count": count}):
                return count  # else it has expired: the API server keeps Events for an hour
        try:
            create(self._api, notice, node=self._node, count=new.count, at=new.at)
        except Rejected as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            # An earlier agent has written it; the count is not known any more.
            if not self._patch(namespace, name, patch):
                raise
        return new.count

    def _patch(self, namespace: str, name: str, patch: Json) -> bool:
        """Patch an Event; return whether there is one."""
        try:
            self._api.patch_event(namespace, name, patch)
        except Rejected as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True
