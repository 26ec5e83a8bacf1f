"""The agent's requests to the API server, with raw JSON."""

from collections.abc import Iterator
from pathlib import Path

from agent.errors import SettingsError, Unavailable
from agent.kubernetes_api.access import RequestFailures
from common.apiserver.client import Client, Json, object_path, quoted
from common.apiserver.errors import CredentialsError, Gone, Rejected

__all__ = ["Api", "Gone", "Json", "Rejected"]

_GET_SECONDS = 1.0
_PATCH_SECONDS = 10.0
_USER_AGENT = "gpu-turnstile-agent"


class Api:
    """A client for one node's agent. Safe to share between threads.

    Every method raises ``Unavailable`` if there is no usable response in time, and ``Rejected`` or
    ``Gone`` if the API server returns an error; :meth:`get_pod` makes these ``Unavailable``, too.

    Attributes:
        failures: the kinds of requests that fail now.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        """Read the credentials of a kubeconfig file, or, with ``None``, of the pod.

        Raises:
            SettingsError: neither can be used.
        """
        try:
            self._client = Client(kubeconfig, user_agent=_USER_AGENT)
        except CredentialsError as error:
            raise SettingsError(str(error)) from error
        self.failures = RequestFailures()

    def list_pods(self, node: str, within: float | None = None) -> tuple[list[Json], str]:
        """List the pods bound to *node*, with the resource version to watch from.

        They come from the API server's cache, in *within* seconds if given.
        """
        query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
        with self.failures.observe("list", "pods"):
            items, version, _ = self._client.list("/api/v1/pods", query, within)
        return items, version

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of the pods bound to *node* until the server ends the stream.

        Yields the type of each event and the object. Raises ``Gone`` if *resource_version* is too
        old.
        """
        query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": resource_version}
        events = self._client.watch("/api/v1/pods", query)
        with self.failures.observe("watch", "pods"):
            first = next(events, None)  # at the latest a bookmark, after a minute
        if first is not None:
            yield first
            yield from events

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        """Get one pod *within* so many seconds, at most one second; ``None`` if there is none."""
        timeout = min(within or _GET_SECONDS, _GET_SECONDS)
        try:
            with self.failures.observe("get", "pods"):
                return self._client.find(object_path("pods", namespace, name), timeout=timeout)
        except (Rejected, Gone) as error:
            raise Unavailable(f"GET pod {namespace}/{name}: {error}") from error

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to a pod; the API server rejects a patch with another UID."""
        self._patch("pods", object_path("pods", namespace, name), patch)

    def get_node(self, name: str) -> Json:
        """Get a node, from the API server's cache."""
        path, query = f"/api/v1/nodes/{quoted(name)}", {"resourceVersion": "0"}
        with self.failures.observe("get", "nodes"):
            return self._client.call("GET", path, timeout=_PATCH_SECONDS, query=query)

    def patch_node(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node."""
        self._patch("nodes", f"/api/v1/nodes/{quoted(name)}", patch)

    def create_event(self, namespace: str, event: Json) -> None:
        """Create an event; one that exists already is a conflict (409)."""
        path = object_path("events", namespace)
        with self.failures.observe("create", "events"):
            self._client.call("POST", path, event, timeout=_PATCH_SECONDS)

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an event."""
        self._patch("events", object_path("events", namespace, name), patch)

    def _patch(self, resource: str, path: str, patch: Json) -> None:
        with self.failures.observe("patch", resource):
            self._client.call("PATCH", path, patch, timeout=_PATCH_SECONDS)

    def close(self) -> None:
        """End a watch in progress at once; further watches end at once too."""
        self._client.close()
