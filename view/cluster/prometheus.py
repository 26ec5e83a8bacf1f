"""Reads the usage of the last day from a Prometheus that scrapes the agents.

Uses its HTTP API (``GET /api/v1/query``). The server is not trusted: time and size are bounded,
redirects are not followed, and an unexpected response makes the usage unknown, with a reason.
"""

import json
import math
import socket
from base64 import b64encode
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from contract.demand import CORES_PER_CARD
from contract.errors import quote
from view.cluster.timing import REAL_TIME, Timing
from view.model.usage import PREFIX
from view.model.usage_history import History, PastUsage
from view.model.words import clamp, safe

_SECONDS = 10.0
"""For all queries together."""

_LARGEST = 32 << 20
_STEP = 300
_CARDS = f"{PREFIX}card_cores_held"
_BY = "max by (namespace, pod, container, card)"  # one of several replicas of Prometheus
_HELD, _USED = (f"{_BY} ({PREFIX}container_cores_{each})" for each in ("held", "used"))
_AMOUNTS = (_HELD, f"{_HELD} and {_USED}", f"clamp_min({_HELD} - {_USED}, 0)")
_SAMPLES = 3600 // _STEP * CORES_PER_CARD
"""Samples of one core that make a card hour."""

_Key = tuple[str, str]


class _UnusableError(Exception):
    """The usage is unknown; the message is the reason."""


class Prometheus:
    """A Prometheus, or a server with the same API."""

    def __init__(self, url: str, *, seconds: float = _SECONDS, timing: Timing = REAL_TIME) -> None:
        """Set the URL, which may have a path and ``user:password@``.

        All queries together take at most so many *seconds*.

        Raises:
            ValueError: it is not an http or https URL.
        """
        self._seconds, self._timing = seconds, timing
        # A password is never printed or logged.
        shown = quote(f"***@{url.rpartition('@')[2]}" if "@" in url else url)
        rule = "must be an http:// or https:// URL with a host, and without a query"
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise ValueError(f"Invalid value: {shown}: {rule}") from None
        if parts.scheme not in ("http", "https") or not self._host or parts.query or parts.fragment:
            raise ValueError(f"Invalid value: {shown}: {rule}")
        self._connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._path = f"{parts.path.rstrip('/')}/api/v1/query"
        self._headers = {"Accept": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"

    def last_day(self) -> History:
        """Query what pods held and left idle; never raises."""
        deadline = self._timing.monotonic() + self._seconds
        try:
            observed = self._query(f"count_over_time((count({_CARDS}))[1d:{_STEP}s])", deadline)
            if not observed:
                return History(
                    f"Prometheus has no {_CARDS} of the last day: does it scrape the agents?"
                )
            held, measured, idle = (
                self._query(
                    f"sum by (namespace, pod) (sum_over_time(({each})[1d:{_STEP}s]))", deadline
                )
                for each in _AMOUNTS
            )
        except _UnusableError as error:
            return History(safe(clamp(str(error), 300)))

        def hours(amounts: Mapping[_Key, float | None], key: _Key) -> float | None:
            found = amounts.get(key)
            return None if found is None else found / _SAMPLES

        pods = (
            PastUsage(*key, *(hours(each, key) for each in (held, measured, idle))) for key in held
        )
        return History("", self._timing.now(), (observed[("", "")] or 0.0) * _STEP, tuple(pods))

    def _query(self, query: str, deadline: float) -> Mapping[_Key, float | None]:
        """Return the values of a query by namespace and pod; ``None`` if not a finite number.

        Raises:
            _UnusableError: there is no response, or it is not the result of a query.
        """
        try:
            status, body = self._get(f"{self._path}?{urlencode({'query': query})}", deadline)
        except (OSError, HTTPException, ValueError) as error:
            late = self._is_over(deadline) or isinstance(error, TimeoutError)
            raise self._unusable(f"is unreachable: {_cause(error)}", late=late) from error
        if len(body) > _LARGEST:
            raise _UnusableError(f"the response of Prometheus is longer than {_LARGEST >> 20} MiB")
        try:
            found = json.loads(body)
            if status != 200 or found["status"] != "success":
                raise _UnusableError(f"Prometheus responded with {status}: {found['error']}")
            return {
                _key(each["metric"]): _number(each["value"][1]) for each in found["data"]["result"]
            }
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            late = self._is_over(deadline)
            raise self._unusable(f"responded with {status} and no result", late=late) from error

    def _get(self, path: str, deadline: float) -> tuple[int, bytes]:
        left = max(deadline - self._timing.monotonic(), 0.001)
        with closing(self._connect(self._host, self._port, timeout=left)) as connection:
            connection.connect()
            # The timeout applies to each read; this also ends a response of one byte per second.
            alarm = Timer(left, _cut, (connection.sock,))
            alarm.start()
            try:
                connection.request("GET", path, headers=self._headers)
                response = connection.getresponse()
                return response.status, response.read(_LARGEST + 1)
            finally:
                alarm.cancel()

    def _is_over(self, deadline: float) -> bool:
        return self._timing.monotonic() >= deadline

    def _unusable(self, why: str, *, late: bool) -> _UnusableError:
        text = f"did not respond in {self._seconds:g} s" if late else why
        return _UnusableError(f"Prometheus {text}")


def _cause(error: Exception) -> str:
    """Return the cause without its number in the operating system."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _key(labels: Mapping[str, Any]) -> _Key:
    return str(labels.get("namespace", "")), str(labels.get("pod", ""))


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
