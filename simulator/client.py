"""A small synchronous JSON client of a Kubernetes API server.

Used by the simulated kubelet, the scheduler, the demo and tests. The agent brings
the official client; this one is here because a simulation wants raw objects,
bodies as they travelled, and a watch that another thread can end at once.

The exceptions of urllib3 end here. That is why watch and requests share one module.
"""

import json
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object, as the API server sent it."""

# Above the time the server was asked to end a watch by itself: then it is the network.
_WATCH_GRACE_S = 30.0
_IDLE_CONNECTIONS = 32


class ApiError(Exception):
    """The API server refused, in the words of its ``Status`` body.

    Attributes:
        status: the HTTP status code; 0 when there was no answer at all.
        reason: the machine-readable reason, such as ``NotFound`` or ``Conflict``.
        details: the ``details`` of the ``Status``: which object, and the causes.
    """

    def __init__(self, status: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}

    def as_kubectl(self) -> str:
        """Write the error as ``kubectl create`` prints it (``checkErr`` in its ``cmd/util``)."""
        causes = [
            f"{each['field']}: {each['message']}" if each.get("field") else each["message"]
            for each in self.details.get("causes") or ()
        ]
        if self.reason != "Invalid" or not causes:
            return f"Error from server ({self.reason}): {self.message}"
        head = f'The {self.details.get("kind")} "{self.details.get("name")}" is invalid:'
        if len(causes) == 1:
            return f"{head} {causes[0]}"
        return "\n".join([f"{head} ", *(f"* {cause}" for cause in causes)])


class ApiUnreachable(ApiError):
    """There was no answer: refused, reset, timed out, or the client was closed."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch.

    Attributes:
        type: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
        object: the object; of a bookmark only kind and resourceVersion are set.
    """

    type: str
    object: Json

    @property
    def resource_version(self) -> str:
        """Where a later watch continues."""
        return str(self.object["metadata"]["resourceVersion"])


class Watch(Iterator[WatchEvent]):
    """A running watch: iterate it; :meth:`close` ends it from any thread at once.

    It ends (``StopIteration``) when closed and when the server ends it in good order;
    a connection that breaks raises :class:`ApiUnreachable`, an expired
    resourceVersion :class:`ApiError` with status 410.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._lines = _lines(response)
        self._closed = threading.Event()

    def __next__(self) -> WatchEvent:
        line = self._next_line()
        try:
            event = json.loads(line)
            kind, obj = event["type"], event["object"]
        except (ValueError, TypeError, KeyError) as error:
            self._lines.close()
            raise ApiError(200, "InternalError", f"watch: not an event: {line[:80]!r}") from error
        if kind == "ERROR":
            self._lines.close()
            raise _error_of(obj, int(obj.get("code", 500)))
        return WatchEvent(kind, obj)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._response.close()

    def close(self) -> None:
        """End the watch; a thread that waits in it returns at once."""
        self._closed.set()
        # Only this wakes a thread that blocks in recv. It fails where the connection is gone.
        with suppress(HTTPError, OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def _next_line(self) -> bytes:
        try:
            line = next(self._lines)
        except (HTTPError, OSError, ValueError, AttributeError) as error:
            # Shutting a TLS socket down under a reader surfaces as ValueError or
            # AttributeError of the ssl module; without close() they stay what they are.
            if self._closed.is_set():
                raise StopIteration from error
            if isinstance(error, HTTPError | OSError):
                raise ApiUnreachable(f"watch broke off: {error}") from error
            raise
        if self._closed.is_set():  # a half-read line of a socket that was shut down
            self._lines.close()
            raise StopIteration
        return line


class ApiClient:
    """Talks JSON to one API server. Safe to share between threads.

    Args:
        server: base URL, such as ``http://127.0.0.1:6443``.
        timeout: seconds for connecting and for each answer (watches excepted).
        ca_file: PEM bundle to verify an ``https`` server with.
        user_agent: how the server's request record names this client.
    """

    def __init__(
        self,
        server: str,
        *,
        timeout: float = 10.0,
        ca_file: str | None = None,
        user_agent: str = "gpu-turnstile-simulator",
    ) -> None:
        self._timeout = timeout
        self.server = server.rstrip("/")
        self._pool = urllib3.PoolManager(
            maxsize=_IDLE_CONNECTIONS,
            retries=False,
            headers={"User-Agent": user_agent, "Accept": "application/json"},
            ca_certs=ca_file,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections; whoever watches ends that."""
        self._pool.clear()

    def get(self, path: str, **query: str) -> Json:
        """Read an object or a collection."""
        return self._call("GET", path, query)

    list = get  # such as ``fieldSelector="spec.nodeName=n1", resourceVersion="0"``

    def create(self, path: str, obj: Json, **query: str) -> Json:
        """POST *obj* to a collection, or to a subresource such as ``.../binding``."""
        return self._call("POST", path, query, obj)

    def replace(self, path: str, obj: Json, **query: str) -> Json:
        """PUT *obj*; refused with 409 when its resourceVersion is not the newest."""
        return self._call("PUT", path, query, obj)

    def patch(self, path: str, patch: Json, **query: str) -> Json:
        """Change one object (or its ``/status``) by a merge patch."""
        kind = "application/merge-patch+json"
        return self._call("PATCH", path, query, patch, content_type=kind)

    def delete(
        self,
        path: str,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        **query: str,
    ) -> Json:
        """Delete one object; with *uid* only if it still is that very one (else 409)."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        return self._call("DELETE", path, query, options)

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> Watch:
        """Watch a collection from *resource_version* on, bookmarks included.

        Args:
            path: the collection.
            resource_version: from a list, an event or a bookmark.
            field_selector: such as ``spec.nodeName=n1``.
            timeout_seconds: when the server ends the watch in good order.

        Raises:
            ApiError: the server refused, 410 when *resource_version* is too old.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "allowWatchBookmarks": "true",
        }
        if field_selector:
            query["fieldSelector"] = field_selector
        response = self._send(
            "GET", self._url(path, query), read_s=timeout_seconds + _WATCH_GRACE_S
        )
        if response.status != 200:
            raise _error_of(_decode(_read(response)), response.status)
        return Watch(response)

    def _url(self, path: str, query: Mapping[str, str]) -> str:
        return f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        *,
        content_type: str = "application/json",
    ) -> Json:
        response = self._send(method, self._url(path, query), body, content_type=content_type)
        decoded = _decode(_read(response))
        if response.status >= 400:
            raise _error_of(decoded, response.status)
        return decoded

    def _send(
        self,
        method: str,
        url: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        read_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers={**self._pool.headers, "Content-Type": content_type},
                preload_content=False,
                timeout=urllib3.Timeout(connect=self._timeout, read=read_s or self._timeout),
            )
        except (HTTPError, OSError) as error:
            raise ApiUnreachable(f"{method} {url}: {error}") from error


def _lines(response: urllib3.BaseHTTPResponse) -> Generator[bytes, None, None]:
    """Split a stream into lines, and close it in the end.

    Unlike the response's own iterator, this one never holds a whole line back until
    the next chunk comes, and drops a last line that was cut short.
    """
    rest = b""
    with response:  # its connection is left in the middle of a body: not for reuse
        for chunk in response.stream(decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line for line in lines if line.strip())


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    try:
        return response.read()
    except (HTTPError, OSError) as error:
        raise ApiUnreachable(f"the answer broke off: {error}") from error
    finally:
        response.release_conn()


def _decode(body: bytes) -> Json:
    try:
        decoded = json.loads(body)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict):
        return decoded
    # What is no JSON object is a proxy's page or a plain refusal: keep its words.
    return {"kind": "Status", "message": body[:200].decode(errors="replace").strip()}


def _error_of(status: Json, code: int) -> ApiError:
    return ApiError(
        code,
        str(status.get("reason", "")),
        str(status.get("message", "")),
        status.get("details"),
    )
