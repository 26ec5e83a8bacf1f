"""Which kinds of requests to the API server fail now, and why. Pure, but for a lock."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from agent.errors import Unavailable
from common.apiserver.errors import REQUEST_ERRORS, Gone, Rejected

Retry = Callable[[], object]
"""Makes a request again, without a change in the cluster."""

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


@dataclass(frozen=True, slots=True, eq=False)
class _Failure:
    """A response by which requests of one kind fail, and what makes the request again."""

    reason: FailureReason
    retry: Retry | None


class RequestFailures:
    """The kinds of requests whose last one failed. Safe to share between threads.

    A request may be rare: a pod is got only on a cache miss, and an Event is dropped after some
    refusals. So one that was refused is made again by :meth:`retry`, and its failure is current
    until the API server accepts it.
    """

    def __init__(self) -> None:
        """Start without failures."""
        self._lock = threading.Lock()
        self._refused: dict[RequestKind, _Failure] = {}
        # Since the last response of the API server.
        self._unreachable: dict[RequestKind, FailureReason] = {}

    @contextmanager
    def observe(self, verb: str, resource: str, retry: Retry | None = None) -> Iterator[None]:
        """Record the result of the request that the ``with`` block makes.

        One without *retry* is made again anyway.
        """
        kind = RequestKind(verb, resource)
        try:
            yield
        except REQUEST_ERRORS as error:
            self._record(kind, _reason(error), retry)
            raise
        self._record(kind, None, retry)

    def retry(self) -> None:
        """Make each refused request again, to learn whether it would be refused now."""
        with self._lock:
            refused = [*self._refused.items()]
        for kind, failure in refused:
            if failure.retry is None:
                continue
            reason = None
            try:
                failure.retry()
            except Unavailable:
                continue  # what the API server would respond is not known
            except (Gone, Rejected) as error:
                reason = _reason(error)
            with self._lock:
                if self._refused.get(kind) is failure:  # else there was a later request
                    self._set_refused(kind, reason, failure.retry)

    def current(self) -> Mapping[RequestKind, FailureReason]:
        """Return the kinds whose last request failed."""
        with self._lock:
            refused = {kind: failure.reason for kind, failure in self._refused.items()}
            return refused | self._unreachable

    def samples(self) -> Mapping[tuple[str, ...], float]:
        """Return a gauge of every kind by verb, resource and reason: 1 if it fails, else 0.

        Kinds that are not in :data:`KINDS` are there while they fail.
        """
        current = self.current()
        return {
            (*kind, current[kind].value if kind in current else ""): float(kind in current)
            for kind in dict.fromkeys((*KINDS, *current))
        }

    def _record(self, kind: RequestKind, reason: FailureReason | None, retry: Retry | None) -> None:
        with self._lock:
            if reason is FailureReason.UNREACHABLE:
                self._unreachable[kind] = reason
                return
            self._unreachable.clear()
            self._set_refused(kind, reason, retry)

    def _set_refused(
        self, kind: RequestKind, reason: FailureReason | None, retry: Retry | None
    ) -> None:
        self._refused.pop(kind, None)
        if reason is not None:
            self._refused[kind] = _Failure(reason, retry)
