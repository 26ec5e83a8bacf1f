"""Requests, lists and watches of the API server: JSON in and out, every error translated.

Over :mod:`common.apiserver.rest`.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common.apiserver.errors import Gone, Rejected
from common.apiserver.lists import decode_without_managed_fields
from common.apiserver.rest import BROKEN, Rest, Timeout
from common.backoff import spread
from common.errors import Unavailable
from common.text import cut

Json = dict[str, Any]

LIST_SECONDS = 30.0
"""For one page of a list, or all of it where it has no pages."""

_CONNECT_SECONDS = 5.0
_WATCH_SECONDS = 300
SILENT_SECONDS = 120.0
"""A watch that says nothing for so long, not even a bookmark, is dead: it is opened again."""


class Client:
    """A client of the API server. Safe to share between threads."""

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        user_agent: str,
        context: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Read the credentials, as :class:`Rest` does; nothing is asked yet.

        Raises:
            CredentialsError: they cannot be used.
        """
        self.rest = Rest(kubeconfig, user_agent=user_agent, context=context, headers=headers)
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
        """Make one request and return the object of the answer.

        Args:
            method: such as ``GET``.
            path: absolute, quoted.
            body: a JSON object; of ``PATCH`` a merge patch.
            timeout: how long to wait.
            query: parameters.

        Raises:
            Gone: 410.
            Rejected: another 4xx but 429.
            Unavailable: no usable answer in time.
        """
        return decode(self._content(method, path, body, timeout=timeout, query=query))

    def find(
        self, path: str, *, timeout: Timeout, query: Mapping[str, str] | None = None
    ) -> Json | None:
        """Get one object, as :meth:`call` does; ``None`` if there is none."""
        try:
            return self.call("GET", path, timeout=timeout, query=query)
        except Rejected as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    def read_text(self, path: str, *, timeout: Timeout) -> str:
        """Get what is no object, such as what a pod answers through the API server's proxy.

        It takes and raises what :meth:`call` does.
        """
        try:
            return self._content("GET", path, timeout=timeout).decode()
        except ValueError as error:
            raise Unavailable(f"API server: {error}") from error

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        """List a collection, or one page of it; ``managedFields`` may be left out.

        Args:
            path: of the collection.
            query: selectors, ``limit`` and ``continue``.
            within: seconds for the answer; ``None`` for as long as a list may take.

        Returns:
            The objects, the resource version to watch from, and what continues the list; empty
            after the last page.

        Raises:
            Gone: the list cannot be continued any more.
            Rejected: the API server says no.
            Unavailable: no usable answer.
        """
        timeout = within or (_CONNECT_SECONDS, LIST_SECONDS)
        answer = decode(
            self._content("GET", path, query=query, timeout=timeout), decode_without_managed_fields
        )
        try:
            metadata = answer["metadata"]
            version, more = str(metadata["resourceVersion"]), str(metadata.get("continue") or "")
            return answer.get("items") or [], version, more
        except (AttributeError, KeyError, TypeError) as error:
            raise Unavailable("API server: answered with something that is no list") from error

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        """Stream what happens to a collection; ends when the server ends it.

        Args:
            path: of the collection.
            query: selectors, and ``resourceVersion``; ``timeoutSeconds`` where the server is to end
                the watch sooner than usual.

        Yields:
            Event type (``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK``) and object.

        Raises:
            Gone: the resource version is too old.
            Unavailable: the stream broke.
        """
        response = self._request(
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
        except (*BROKEN, ValueError) as error:
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

    def close(self) -> None:
        """End every watch in progress at once; further watches end at once too."""
        with self._lock:
            self._closed = True
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
        response = self._request(method, path, body, timeout=timeout, query=query)
        try:
            content: bytes = response.data
        except BROKEN as error:
            raise Unavailable(f"API server: {error}") from error
        return content

    def _request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout: Timeout,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Make a request; raise what a status other than 2xx stands for."""
        response = self.rest.request(method, path, timeout=timeout, query=query, body=body)
        status: int = response.status
        if 200 <= status < 300:
            return response
        try:
            content = response.data
        except BROKEN:
            content = b""
        raise refusal(status, str(response.reason), content)


def decode(content: bytes, loads: Callable[[bytes], Any] = json.loads) -> Json:
    """Read the object of an answer, by :func:`json.loads` or another decoder.

    Raises:
        Unavailable: it is none.
    """
    try:
        decoded = loads(content)
    except ValueError as error:
        raise Unavailable(f"API server: {error}") from error
    if not isinstance(decoded, dict):
        raise Unavailable("API server: answered with something that is no object")
    return decoded


def refusal(status: int, reason: str, content: bytes) -> Gone | Rejected | Unavailable:
    """Return the error for an HTTP status other than 2xx.

    Args:
        status: the HTTP status; 410 is ``Gone``, any other 4xx but 429 ``Rejected``.
        reason: the text beside it.
        content: a ``Status``, whose message is told, or anything else.
    """
    message = _message(reason, content)
    if status == 410:
        return Gone(message)
    if 400 <= status < 500 and status != 429:
        return Rejected(status, message)
    return Unavailable(f"API server: {status} {message}")


def object_path(resource: str, namespace: str, name: str = "", *, api: str = "/api/v1") -> str:
    """Return the path of a namespaced resource, or of one object of it."""
    path = f"{api}/namespaces/{quoted(namespace)}/{resource}"
    return f"{path}/{quoted(name)}" if name else path


def quoted(segment: str) -> str:
    """Write one segment of a path."""
    return quote(segment, safe="")


def split_lines(response: Any) -> Iterator[bytes]:
    """Split a stream into lines, holding back what has no end yet."""
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


def _message(reason: str, content: bytes) -> str:
    """Return the message of a ``Status``, or the reason beside the HTTP status."""
    try:
        return str(json.loads(content)["message"])
    except (TypeError, ValueError, KeyError):
        return reason


def _event(line: bytes) -> tuple[str, Json]:
    """Read one line of a watch.

    Raises:
        ValueError: it is no event.
    """
    event = json.loads(line)
    if isinstance(event, dict):
        kind, obj = event.get("type"), event.get("object")
        if isinstance(kind, str) and isinstance(obj, dict):
            return kind, obj
    raise ValueError(f"not an event: {cut(line.decode(errors='replace'), 80)}")
