"""Which kinds of requests to the API server fail now, and why. Pure, but for a lock."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from agent.errors import Unavailable
from common.apiserver.errors import REQUEST_ERRORS, Rejected

_REMEMBERED_SECONDS = 600.0
# An Event is dropped after some refusals, and no other may follow for hours: by then the missing
# permission may have been granted. All other requests are repeated within a minute.

_NOT_ALLOWED = (HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
_NO_PERMISSION = re.compile(r"\bcannot [a-z]+ resource\b")
_NAMESPACE_ENDS = "is being terminated"
"""Parts of the API server's messages with these statuses; other messages are of admission."""


class RequestKind(NamedTuple):
    """A verb and a resource, as RBAC names them."""

    verb: str
    resource: str


KINDS = tuple(
    RequestKind(verb, resource)
    for resource, verbs in {
        "pods": ("list", "watch", "get", "patch"),
        "nodes": ("get", "patch"),
        "events": ("create", "patch"),
        "resourceslices": ("list",),
    }.items()
    for verb in verbs
)
"""Every kind of request that the agent makes as a device plugin: its permissions
(``deploy/base/agent/rbac.yaml``). With ``--mode dra`` there are more."""


class FailureReason(StrEnum):
    """Why requests of one kind fail."""

    FORBIDDEN = "forbidden"
    """The agent has no permission (403)."""
    DENIED = "denied"
    """A policy or webhook denies them (403, 422)."""
    UNAUTHORIZED = "unauthorized"
    """The API server does not accept the agent's token (401)."""
    UNREACHABLE = "unreachable"
    """There is no usable response: timeouts, connection errors, 429 and 5xx."""


def _reason(error: Exception) -> FailureReason | None:
    """Return why a request failed; ``None`` if the API server has carried out such requests."""
    if isinstance(error, Unavailable):
        return FailureReason.UNREACHABLE
    status = error.status if isinstance(error, Rejected) else None
    if status == HTTPStatus.UNAUTHORIZED:
        return FailureReason.UNAUTHORIZED
    if status not in _NOT_ALLOWED or _NAMESPACE_ENDS in str(error):
        return None
    missing = _NO_PERMISSION.search(str(error))
    return FailureReason.FORBIDDEN if missing else FailureReason.DENIED


class RequestFailures:
    """The kinds of requests whose last one failed. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without failures; *clock* returns monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: dict[RequestKind, tuple[FailureReason, float]] = {}

    @contextmanager
    def observe(self, verb: str, resource: str) -> Iterator[None]:
        """Record the result of the request that the ``with`` block makes."""
        kind = RequestKind(verb, resource)
        try:
            yield
        except REQUEST_ERRORS as error:
            self._record(kind, _reason(error))
            raise
        self._record(kind, None)

    def current(self) -> Mapping[RequestKind, FailureReason]:
        """Return the kinds whose last request failed, in the last ten minutes."""
        oldest = self._clock() - _REMEMBERED_SECONDS
        with self._lock:
            return {kind: reason for kind, (reason, at) in self._failed.items() if at >= oldest}

    def samples(self) -> Mapping[tuple[str, ...], float]:
        """Return a gauge of every kind by verb, resource and reason: 1 if it fails, else 0.

        Kinds that are not in :data:`KINDS` are there while they fail.
        """
        current = self.current()
        return {
            (*kind, current[kind].value if kind in current else ""): float(kind in current)
            for kind in dict.fromkeys((*KINDS, *current))
        }

    def _record(self, kind: RequestKind, reason: FailureReason | None) -> None:
        with self._lock:
            self._failed.pop(kind, None)
            if reason is not FailureReason.UNREACHABLE:  # the API server has responded
                self._failed = {
                    each: found
                    for each, found in self._failed.items()
                    if found[0] is not FailureReason.UNREACHABLE
                }
            if reason is not None:
                self._failed[kind] = reason, self._clock()
