"""The API server, as the agent uses it. The only importer of ``kubernetes`` and ``urllib3``.

Raw JSON in and out: building typed objects of every pod on every event costs more than
everything else the agent does.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from agent.errors import SettingsError, Unavailable
from common.backoff import spread

Json = dict[str, Any]

_GET_SECONDS = 1.0
_LIST_SECONDS = 30.0
_PATCH_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_WATCH_SECONDS = 300
# A watch that says nothing for so long, not even a bookmark, is dead: it is opened again.
_SILENT_SECONDS = 120.0

# What the client lets through when a kubeconfig is bad, its YAML parser's errors included.
_UNUSABLE = (
    config.ConfigException,
    # Reached through the client: PyYAML is imported by agent.cardsfile alone.
    config.kube_config.yaml.YAMLError,  # type: ignore[attr-defined]  # no re-export meant
    OSError,
    ValueError,
    TypeError,
)


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
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        except _UNUSABLE as error:
            where = kubeconfig or "the pod's service account"
            reason = " ".join(str(error).split())
            raise SettingsError(f"kubeconfig: cannot use {where}: {reason}") from error
        configuration.retries = False
        api_client = client.ApiClient(configuration)
        api_client.user_agent = "gpu-turnstile-agent"  # audit logs name who asked
        self._core = client.CoreV1Api(api_client)
        self._lock = threading.Lock()
        self._watching: Any = None
        self._closed = False

    def list_pods(self, node: str) -> tuple[list[Json], str]:
        """List the pods bound to *node*, from the API server's cache.

        Returns:
            The pods and the resource version to watch from.

        Raises:
            Unavailable: no usable answer.
        """
        answer = self._call(
            self._core.list_pod_for_all_namespaces,
            field_selector=f"spec.nodeName={node}",
            resource_version="0",
            _request_timeout=(_CONNECT_SECONDS, _LIST_SECONDS),
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
            self._core.list_pod_for_all_namespaces,
            field_selector=f"spec.nodeName={node}",
            resource_version=resource_version,
            watch=True,
            allow_watch_bookmarks=True,
            # As client-go does it: the watches of all nodes do not end together.
            timeout_seconds=int(spread(_WATCH_SECONDS)),
            _request_timeout=(_CONNECT_SECONDS, _SILENT_SECONDS),
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
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unavailable(f"watch: {error}") from error
        finally:
            response.close()

    def get_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` when there is none.

        Raises:
            Unavailable: no usable answer in time.
        """
        try:
            return self._call(
                self._core.read_namespaced_pod, name, namespace, _request_timeout=_GET_SECONDS
            )
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
        self._call(
            self._core.patch_namespaced_pod,
            name,
            namespace,
            patch,
            _content_type="application/merge-patch+json",
            _request_timeout=_PATCH_SECONDS,
        )

    def patch_node(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node.

        Raises:
            Rejected: there is no such node, or the patch is refused.
            Unavailable: no usable answer in time.
        """
        self._call(
            self._core.patch_node,
            name,
            patch,
            _content_type="application/merge-patch+json",
            _request_timeout=_PATCH_SECONDS,
        )

    def create_event(self, namespace: str, event: Json) -> None:
        """Create an event.

        Raises:
            Rejected: it exists already (409), or is refused.
            Unavailable: no usable answer in time.
        """
        self._call(
            self._core.create_namespaced_event, namespace, event, _request_timeout=_PATCH_SECONDS
        )

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an event.

        Raises:
            Rejected: it is gone, or the patch is refused.
            Unavailable: no usable answer in time.
        """
        self._call(
            self._core.patch_namespaced_event,
            name,
            namespace,
            patch,
            _content_type="application/merge-patch+json",
            _request_timeout=_PATCH_SECONDS,
        )

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

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Json:
        response = self._request(method, *args, **kwargs)
        try:
            decoded = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unavailable(f"API server: {error}") from error
        if not isinstance(decoded, dict):
            raise Unavailable("API server: answered with something that is no object")
        return decoded

    def _request(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a request; translate every foreign exception here and nowhere else."""
        try:
            return method(*args, _preload_content=False, **kwargs)
        except client.ApiException as error:
            message = _message(error)
            if error.status == 410:
                raise Gone(message) from error
            if error.status is not None and 400 <= error.status < 500 and error.status != 429:
                raise Rejected(error.status, message) from error
            raise Unavailable(f"API server: {error.status} {message}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"API server: {error}") from error


def _message(error: client.ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


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
