"""Requests, lists and watches of the API server: JSON in and out, by :mod:`common.apiserver.rest`.

Every error is translated to one of :mod:`common.apiserver.errors` or ``Unavailable``.
"""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from urllib3.exceptions import ReadTimeoutError

from common.apiserver.access import ServerAccess
from common.apiserver.errors import Gone, Rejected, TooManyRequests
from common.apiserver.lists import decode_without_managed_fields
from common.apiserver.rest import BROKEN, OnWait, Rest, Timeout, describe, expects_https, log_wait
from common.backoff import spread
from common.errors import Unavailable
from common.text import cut

Json = dict[str, Any]

LIST_SECONDS = 30.0
"""Timeout of one page of a list, or of a list without pages."""

_TLS_EXPECTED = re.compile(rb"HTTP request .*\bto (?:an )?HTTPS (?:server|port)")

_CONNECT_SECONDS = 5.0
_WATCH_SECONDS = 300
SILENT_SECONDS = 120.0
"""A watch without any event for this long, not even a bookmark, may be broken: it is opened again.

An API server sends no bookmark before the first change of a collection since its start (``cacher``
in its ``pkg/storage/cacher``).
"""


class Client:
    """A client of the API server. Safe to share between threads."""

    def __init__(
        self,
        access: ServerAccess | Path | None,
        *,
        user_agent: str,
        request_timeout: float | None = None,
        on_wait: OnWait = log_wait,
    ) -> None:
        """Read the credentials, as :class:`Rest` does; no request is made yet.

        Each request except watches takes at most *request_timeout* seconds if that is given.
        *on_wait* is that of :class:`Rest`.

        Raises:
            CredentialsError: the credentials cannot be used.
        """
        self.rest = Rest(access, user_agent=user_agent, on_wait=on_wait)
        self._request_timeout = request_timeout
        self._lock = threading.Lock()
        self._watching: set[Any] = set()
        self._closed = False

    def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout: Timeout,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Make one request, as :meth:`Rest.request` does, and return the object in the response.

        Raises:
            Gone: 410.
            Rejected: another 4xx except 429.
            Unavailable: no usable response in time.
        """
        return decode(self._content(method, path, body, timeout=timeout, query=query))

    def find(self, path: str, *, timeout: Timeout) -> Json | None:
        """Get one object, as :meth:`call` does; ``None`` if it does not exist."""
        try:
            return self.call("GET", path, timeout=timeout)
        except Rejected as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    def read_text(self, path: str, *, timeout: Timeout) -> str:
        """Get a response as text, such as a pod's response through the API server's proxy.

        Arguments and errors are those of :meth:`call`.
        """
        try:
            return self._content("GET", path, timeout=timeout).decode()
        except ValueError as error:
            raise Unavailable(f"API server: {error}") from error

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        """List a collection, or one page of it; the objects may lack ``managedFields``.

        The *query* has selectors, ``limit`` and ``continue``. The response must come *within* so
        many seconds; by default that is the usual timeout of a list.

        Returns:
            The objects, the resource version to watch from, and the ``continue`` token of the next
            page; the token is empty after the last page.

        Raises:
            Gone: the list cannot be continued any more.
            Rejected: the API server rejects the request.
            Unavailable: no usable response.
        """
        timeout = within or (_CONNECT_SECONDS, LIST_SECONDS)
        response = decode(
            self._content("GET", path, query=query, timeout=timeout), decode_without_managed_fields
        )
        try:
            metadata = response["metadata"]
            version, more = str(metadata["resourceVersion"]), str(metadata.get("continue") or "")
            return response.get("items") or [], version, more
        except (AttributeError, KeyError, TypeError) as error:
            raise Unavailable("API server: the response is not a list") from error

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        """Stream the events of a collection until the server ends the watch, or is silent.

        The *query* has selectors and ``resourceVersion``, and ``timeoutSeconds`` if the server
        should end the watch earlier than usual.

        Yields:
            Event type (``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK``) and object.

        Raises:
            Gone: the resource version is too old.
            Unavailable: the stream broke.
        """
        response = self.rest.request(
            "GET",
            path,
            query={
                # As client-go does it: the watches of all nodes do not end together.
                "timeoutSeconds": str(int(spread(_WATCH_SECONDS))),
                **query,
                "watch": "true",
                "allowWatchBookmarks": "true",
            },
            timeout=(_CONNECT_SECONDS, SILENT_SECONDS),
        )
        check_status(response, self.rest.host)
        with self._lock:
            self._watching.add(response)
            if self._closed:
                _shut(response)
        try:
            for line in split_lines(response):
                kind, obj = _event(line)
                if kind == "ERROR":
                    if obj.get("code") == 410:
                        raise Gone(obj.get("message", ""))
                    raise Unavailable(f"watch: {obj.get('message')}")
                yield kind, obj
        except ReadTimeoutError:
            return  # if the connection is broken, the next watch shows it
        except BROKEN as error:
            raise Unavailable(f"watch: {describe(error, self.rest.host)}") from error
        except ValueError as error:
            raise Unavailable(f"watch: {error}") from error
        finally:
            with self._lock:
                self._watching.discard(response)
            response.close()

    def end_watches(self) -> None:
        """End every watch in progress at once."""
        with self._lock:
            for response in self._watching:
                _shut(response)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """End the waits of all threads at Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            self.rest.close()
            raise

    def close(self) -> None:
        """End every watch and wait at once; further watches end at once too."""
        with self._lock:
            self._closed = True
        self.rest.close()
        self.end_watches()

    def _content(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout: Timeout,
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        timeout = self._request_timeout or timeout
        response = self.rest.request(method, path, timeout=timeout, query=query, body=body)
        check_status(response, self.rest.host)
        try:
            content: bytes = response.data
        except BROKEN as error:
            seconds = timeout[1] if isinstance(timeout, tuple) else timeout
            text = describe(error, self.rest.host, seconds)
            raise Unavailable(f"API server: {text}") from error
        return content


def pages(
    client: Client, path: str, query: Mapping[str, str], *, limit: int | None = 500
) -> Iterator[tuple[list[Json], str]]:
    """Yield the pages of a list: objects, and the resource version to watch from.

    A page, which is in memory as a whole, has at most *limit* objects; with ``None`` there is one
    page with all objects, from the API server's cache.

    Raises:
        Gone: its pages took too long.
        Rejected: the API server rejects the request.
        Unavailable: no usable response.
    """
    wanted = {**query, **({"resourceVersion": "0"} if limit is None else {"limit": str(limit)})}
    while True:
        objects, version, more = client.list(path, wanted)
        yield objects, version
        if not more:
            return
        wanted["continue"] = more


def list_slices(client: Client, query: Mapping[str, str]) -> list[Json]:
    """List ResourceSlices by the newest version of their API that the API server serves.

    Returns:
        The slices; none if no version is served, so that there can be none.

    Raises:
        Gone, Rejected, Unavailable: as by :func:`pages`.
    """
    for version in ("v1", "v1beta1"):
        path = f"/apis/resource.k8s.io/{version}/resourceslices"
        try:
            return [each for page, _ in pages(client, path, query) for each in page]
        except Rejected as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return []


def decode(content: bytes, loads: Callable[[bytes], Any] = json.loads) -> Json:
    """Decode the object in a response, by :func:`json.loads` or another decoder.

    Raises:
        Unavailable: the content is not a JSON object.
    """
    try:
        decoded = loads(content)
    except ValueError as error:
        raise Unavailable(f"API server: {error}") from error
    if not isinstance(decoded, dict):
        raise Unavailable("API server: the response is not an object")
    return decoded


def check_status(response: Any, server: str) -> None:
    """Check the HTTP status of a response of :meth:`Rest.request`; *server* is its URL.

    Raises:
        Gone: 410.
        Rejected: another 4xx except 429.
        Unavailable: any other status except 2xx.
    """
    status: int = response.status
    if 200 <= status < 300:
        return
    try:
        message = str(json.loads(response.data)["message"])  # of a Status
    except (*BROKEN, TypeError, ValueError, KeyError):
        message = _plain_text(response) or str(response.reason)
        if server.startswith("http:") and _is_about_tls(response):
            raise Unavailable(f"API server: {expects_https(server)}") from None
    if status == 410:
        raise Gone(message)
    later = response.headers.get("Retry-After", "")
    if later and (status == 429 or status >= 500):
        message = f"{message} (Retry-After: {cut(later, 40)})"
    if 400 <= status < 500 and status != 429:
        raise Rejected(status, message)
    kind = TooManyRequests if status == 429 else Unavailable
    raise kind(f"API server: {status} {message}")


def _plain_text(response: Any) -> str:
    """Return the first line of a response in plain text, such as a pod's by the proxy."""
    if not response.headers.get("Content-Type", "").startswith("text/plain"):
        return ""
    try:
        lines: list[str] = response.data.decode(errors="replace").splitlines()
    except BROKEN:
        return ""
    return cut(next((each.strip() for each in lines if each.strip()), ""), 200)


def _is_about_tls(response: Any) -> bool:
    """Return whether a response says that the request came without TLS, as by Go or nginx."""
    try:
        return response.status == 400 and _TLS_EXPECTED.search(response.data) is not None
    except BROKEN:
        return False


def object_path(resource: str, namespace: str, name: str = "", *, api: str = "/api/v1") -> str:
    """Return the path of a namespaced resource, or of one object of it."""
    path = f"{api}/namespaces/{quoted(namespace)}/{resource}"
    return f"{path}/{quoted(name)}" if name else path


def quoted(segment: str) -> str:
    """Quote one segment of a path."""
    return quote(segment, safe="")


def split_lines(response: Any) -> Iterator[bytes]:
    """Split a stream into lines; a line is yielded when it is complete."""
    pending = b""
    for chunk in response.stream(65536):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line for line in lines if line)


def _shut(response: Any) -> None:
    connection = getattr(response, "connection", None)
    sock = getattr(connection, "sock", None)
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _event(line: bytes) -> tuple[str, Json]:
    """Read one line of a watch.

    Raises:
        ValueError: it is not an event.
    """
    event = json.loads(line)
    if isinstance(event, dict):
        kind, obj = event.get("type"), event.get("object")
        if isinstance(kind, str) and isinstance(obj, dict):
            return kind, obj
    raise ValueError(f"not an event: {cut(line.decode(errors='replace'), 80)}")
