"""A small synchronous JSON client of a Kubernetes API server.

The simulated kubelet, the scheduler, the demo and tests use it. They do not use our programs' own
client, because that client is itself under test. They also need raw objects, and a watch that
another thread can end.

No exception of urllib3 leaves this module; that is why it has both watch and requests.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeAlias
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object, as the API server sent it."""

_TIMEOUT_S = 60.0
"""Timeout of a connection, and of each response except a watch's; long for busy machines."""
_WATCH_S = 300
# If the server does not end a watch this long after its timeout, the network is broken.
_WATCH_GRACE_S = 30.0
_IDLE_CONNECTIONS = 32
_BROKEN = (HTTPError, OSError)


class ApiError(Exception):
    """The API server refused a request; the fields are those of its ``Status`` body.

    Attributes:
        status: the HTTP status code; 0 if there was no response.
        reason: the machine-readable reason, such as ``NotFound`` or ``Conflict``.
        message: the text for users.
        details: the ``details`` of the ``Status``: the object, and the causes.
    """

    def __init__(self, status: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}

    def as_kubectl(self) -> str:
        """Return the error as ``kubectl create`` prints it (``checkErr`` in its ``cmd/util``)."""
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
    """There was no response: connection refused, reset, timed out, or the client was closed."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class WatchEvent(NamedTuple):
    """One line of a watch; the object of a ``BOOKMARK`` has only kind and resourceVersion."""

    type: str
    object: Json

    @property
    def resource_version(self) -> str:
        """The version from which a later watch continues."""
        return str(self.object["metadata"]["resourceVersion"])


class Watch:
    """A running watch; any thread may end it with :meth:`close`.

    Iterating it yields events until it is closed, or until the server ends it regularly. A broken
    connection raises :class:`ApiUnreachable`, an expired resourceVersion :class:`ApiError` with
    status 410.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[WatchEvent]:
        try:
            for line in _lines(self._response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error_of(event["object"], int(event["object"].get("code", 500)))
                yield WatchEvent(event["type"], event["object"])
        # If another thread shuts a TLS socket down, the reader may get these errors too.
        except (*_BROKEN, ValueError, AttributeError) as error:
            if not self._closed.is_set():
                raise ApiUnreachable(f"watch broke off: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._response.close()

    def close(self) -> None:
        """End the watch; a thread that iterates it returns at once."""
        self._closed.set()
        # Only this wakes a thread that blocks in recv. It fails if the connection is closed.
        with suppress(HTTPError, OSError, ValueError, RuntimeError):
            self._response.shutdown()


class ApiClient:
    """Calls one API server with JSON; threads may share it.

    Args:
        server: base URL, such as ``http://127.0.0.1:6443``.
        ca_file: PEM bundle that verifies an ``https`` server.
        user_agent: name of this client in the server's log of requests.
    """

    def __init__(
        self,
        server: str,
        *,
        ca_file: str | None = None,
        user_agent: str = "gpu-turnstile-simulator",
    ) -> None:
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
        """Close idle connections; running watches must be closed by their users."""
        self._pool.clear()

    def get(self, path: str, **query: str) -> Json:
        """Read an object or a collection."""
        return self._call("GET", path, query)

    list = get  # such as ``fieldSelector="spec.nodeName=n1", resourceVersion="0"``

    def create(self, path: str, obj: Json, *, dry_run: bool = False) -> Json:
        """POST *obj* to a collection, or to a subresource such as ``.../binding``."""
        return self._call("POST", path, {"dryRun": "All"} if dry_run else {}, obj)

    def replace(self, path: str, obj: Json) -> Json:
        """PUT *obj*; the server refuses it with 409 if its resourceVersion is not the newest."""
        return self._call("PUT", path, {}, obj)

    def patch(self, path: str, patch: Json) -> Json:
        """Change one object or its ``/status`` with a merge patch."""
        return self._call("PATCH", path, {}, patch)

    def delete(
        self, path: str, *, grace_period_seconds: int | None = None, uid: str | None = None
    ) -> Json:
        """Delete one object; with *uid* only if it has this UID, else 409."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        return self._call("DELETE", path, {}, options)

    def watch(self, path: str, *, resource_version: str, field_selector: str = "") -> Watch:
        """Watch a collection, with bookmarks, from the version of a list or event.

        Raises:
            ApiError: the server refused; 410 if *resource_version* is too old.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_S),
            "allowWatchBookmarks": "true",
            **({"fieldSelector": field_selector} if field_selector else {}),
        }
        response = self._send("GET", path, query, read_s=_WATCH_S + _WATCH_GRACE_S)
        if response.status != 200:
            raise _error_of(_read(response), response.status)
        return Watch(response)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
    ) -> Json:
        response = self._send(method, path, query, body)
        decoded = _read(response)
        if response.status >= 400:
            raise _error_of(decoded, response.status)
        return decoded

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        *,
        read_s: float = _TIMEOUT_S,
    ) -> urllib3.BaseHTTPResponse:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers={**self._pool.headers, "Content-Type": f"application/{kind}"},
                preload_content=False,
                timeout=urllib3.Timeout(connect=_TIMEOUT_S, read=read_s),
            )
        except _BROKEN as error:
            raise ApiUnreachable(f"{method} {url}: {error}") from error


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a stream as soon as each is complete."""
    rest = b""
    for chunk in response.stream():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _read(response: urllib3.BaseHTTPResponse) -> Json:
    """Decode a response; a body that is not a JSON object, such as a proxy's page, is a message."""
    try:
        body = response.read()
    except _BROKEN as error:
        raise ApiUnreachable(f"the response broke off: {error}") from error
    finally:
        response.release_conn()
    with suppress(ValueError):
        decoded = json.loads(body)
        if isinstance(decoded, dict):
            return decoded
    return {"kind": "Status", "message": body[:200].decode(errors="replace").strip()}


def _error_of(status: Json, code: int) -> ApiError:
    reason, message = (str(status.get(each, "")) for each in ("reason", "message"))
    return ApiError(code, reason, message, status.get("details"))
