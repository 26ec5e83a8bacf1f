"""The API server, as the agent uses it.

Raw JSON in and out, over :mod:`agent.kubernetes_api.rest`.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agent.errors import Unavailable
from agent.kubernetes_api.rest import BROKEN, Rest, Timeout
from common.backoff import spread

Json = dict[str, Any]

_GET_SECONDS = 1.0
_LIST_SECONDS = 30.0
_PATCH_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_WATCH_SECONDS = 300
# A watch that says nothing for so long, not even a bookmark, is dead: it is opened again.
_SILENT_SECONDS = 120.0


class Gone(Exception):
    """The watch's starting point is no longer kept (410): list again."""


class Rejected(Exception):
    """The API server understood and said no.

    Attributes:
        status: the HTTP status, 4xx.
    """

    def __init__(self, status: int, message: str) -> None:
        """Keep the status beside the message."""
        self.status = status
        super().__init__(message)


class Api:
    """A client for one node's agent. Safe to share between threads."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Read the credentials; nothing is asked yet.

        Args:
            kubeconfig: a kubeconfig file; ``None`` for the service account of the pod.

        Raises:
            SettingsError: neither can be used.
        """
        self._rest = Rest(kubeconfig)
        self._lock = threading.Lock()
        self._watching: Any = None
        self._closed = False

    def list_pods(self, node: str, within: float | None = None) -> tuple[list[Json], str]:
        """List the pods bound to *node*, from the API server's cache.

        Args:
            node: the node's name.
            within: seconds for the answer; ``None`` for as long as a list may take.

        Returns:
            The pods and the resource version to watch from.

        Raises:
            Unavailable: no usable answer.
        """
        answer = self._call(
            "GET",
            "/api/v1/pods",
            query={"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"},
            timeout=within or (_CONNECT_SECONDS, _LIST_SECONDS),
        )
        try:
            return answer.get("items") or [], str(answer["metadata"]["resourceVersion"])
        except (KeyError, TypeError) as error:
            raise Unavailable("API server: answered with something that is no list") from error

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Stream what happens to the pods bound to *node*; ends when the server ends it.

        Yields:
            Event type (``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK``) and object.

        Raises:
            Gone: *resource_version* is too old.
            Unavailable: the stream broke.
        """
        response = self._request(
            "GET",
            "/api/v1/pods",
            query={
                "fieldSelector": f"spec.nodeName={node}",
                "resourceVersion": resource_version,
                "watch": "true",
                "allowWatchBookmarks": "true",
                # As client-go does it: the watches of all nodes do not end together.
                "timeoutSeconds": str(int(spread(_WATCH_SECONDS))),
            },
            timeout=(_CONNECT_SECONDS, _SILENT_SECONDS),
        )
        with self._lock:
            self._watching = response
            if self._closed:
                self._shut(response)
        try:
            for line in _lines(response):
                kind, obj = _event(line)
                if kind == "ERROR":
                    if obj.get("code") == 410:
                        raise Gone(obj.get("message", ""))
                    raise Unavailable(f"watch: {obj.get('message')}")
                yield kind, obj
        except (*BROKEN, ValueError) as error:
            raise Unavailable(f"watch: {error}") from error
        finally:
            response.close()

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        """Get one pod; ``None`` when there is none.

        Args:
            namespace: of the pod.
            name: of the pod.
            within: seconds for the answer, at most one.

        Raises:
            Unavailable: no usable answer in time.
        """
        timeout = min(within or _GET_SECONDS, _GET_SECONDS)
        try:
            return self._call("GET", _path("pods", namespace, name), timeout=timeout)
        except (Rejected, Gone) as error:
            if isinstance(error, Rejected) and error.status == 404:
                return None
            raise Unavailable(f"GET pod {namespace}/{name}: {error}") from error

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to a pod.

        Raises:
            Rejected: the pod is gone, is another one, or the patch is refused.
            Unavailable: no usable answer in time.
        """
        self._call("PATCH", _path("pods", namespace, name), patch, timeout=_PATCH_SECONDS)

    def patch_node(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node.

        Raises:
            Rejected: there is no such node, or the patch is refused.
            Unavailable: no usable answer in time.
        """
        path = f"/api/v1/nodes/{_quoted(name)}"
        self._call("PATCH", path, patch, timeout=_PATCH_SECONDS)

    def create_event(self, namespace: str, event: Json) -> None:
        """Create an event.

        Raises:
            Rejected: it exists already (409), or is refused.
            Unavailable: no usable answer in time.
        """
        self._call("POST", _path("events", namespace), event, timeout=_PATCH_SECONDS)

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an event.

        Raises:
            Rejected: it is gone, or the patch is refused.
            Unavailable: no usable answer in time.
        """
        self._call("PATCH", _path("events", namespace, name), patch, timeout=_PATCH_SECONDS)

    def close(self) -> None:
        """End a watch in progress at once; further watches end at once too."""
        with self._lock:
            self._closed = True
            if self._watching is not None:
                self._shut(self._watching)

    @staticmethod
    def _shut(response: Any) -> None:
        """Wake the thread that reads *response*: closing alone would wait for it."""
        connection = getattr(response, "connection", None)
        sock = getattr(connection, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout: Timeout,
        query: dict[str, str] | None = None,
    ) -> Json:
        response = self._request(method, path, body, timeout=timeout, query=query)
        try:
            decoded = json.loads(response.data)
        except (*BROKEN, ValueError) as error:
            raise Unavailable(f"API server: {error}") from error
        if not isinstance(decoded, dict):
            raise Unavailable("API server: answered with something that is no object")
        return decoded

    def _request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout: Timeout,
        query: dict[str, str] | None = None,
    ) -> Any:
        """Make a request; raise what a status other than 2xx stands for."""
        response = self._rest.request(method, path, timeout=timeout, query=query, body=body)
        status: int = response.status
        if 200 <= status < 300:
            return response
        message = _message(response)
        if status == 410:
            raise Gone(message)
        if 400 <= status < 500 and status != 429:
            raise Rejected(status, message)
        raise Unavailable(f"API server: {status} {message}")


def _path(resource: str, namespace: str, name: str = "") -> str:
    """Return the path of a namespaced resource, or of one object of it."""
    path = f"/api/v1/namespaces/{_quoted(namespace)}/{resource}"
    return f"{path}/{_quoted(name)}" if name else path


def _quoted(segment: str) -> str:
    return quote(segment, safe="")


def _message(response: Any) -> str:
    """Return the message of a ``Status``, or the reason beside the HTTP status."""
    try:
        return str(json.loads(response.data)["message"])
    except (*BROKEN, TypeError, ValueError, KeyError):
        return str(response.reason)


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
    raise ValueError(f"not an event: {line[:80].decode(errors='replace')}")


def _lines(response: Any) -> Iterator[bytes]:
    """Split a stream into lines, holding back what has no end yet."""
    pending = b""
    for chunk in response.stream(65536):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line for line in lines if line)
