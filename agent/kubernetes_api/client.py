"""The agent's requests to the API server, with raw JSON."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.errors import SettingsError, Unavailable
from agent.kubernetes_api.access import RequestFailures
from common.apiserver.client import Client, Json, object_path, quoted
from common.apiserver.errors import CredentialsError, Gone, Rejected

__all__ = ["Api", "Gone", "Json", "Rejected"]

_GET_SECONDS = 1.0
_PATCH_SECONDS = 10.0
_USER_AGENT = "gpu-turnstile-agent"

RESOURCE_API = "/apis/resource.k8s.io/v1"
CLAIMS, SLICES = f"{RESOURCE_API}/resourceclaims", f"{RESOURCE_API}/resourceslices"
"""The paths of all claims and of all slices."""


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
        query = {"fieldSelector": f"spec.nodeName={node}"}
        return self._list("pods", "/api/v1/pods", query, within)

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of the pods bound to *node* until the server ends the stream.

        Yields the type of each event and the object. Raises ``Gone`` if *resource_version* is too
        old.
        """
        query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": resource_version}
        return self._watch("pods", "/api/v1/pods", query)

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

    # --- Dynamic Resource Allocation ------------------------------------------------------

    def patch_node_status(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node's status."""
        self._patch("nodes/status", f"/api/v1/nodes/{quoted(name)}/status", patch)

    def list_claims(self) -> tuple[list[Json], str]:
        """List all claims of the cluster, with the resource version to watch from.

        Claims have no field selector but name and namespace. They come from the API server's cache.
        """
        return self._list("resourceclaims", CLAIMS, {})

    def watch_claims(self, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of all claims, as :meth:`watch_pods` does."""
        return self._watch("resourceclaims", CLAIMS, {"resourceVersion": resource_version})

    def get_claim(self, namespace: str, name: str) -> Json | None:
        """Get one claim; ``None`` if there is none."""
        path = object_path("resourceclaims", namespace, name, api=RESOURCE_API)
        try:
            with self.failures.observe("get", "resourceclaims"):
                return self._client.find(path, timeout=_GET_SECONDS)
        except (Rejected, Gone) as error:
            raise Unavailable(f"GET claim {namespace}/{name}: {error}") from error

    def list_slices(self, node: str, driver: str) -> tuple[list[Json], str]:
        """List a driver's slices of one node, with the resource version to watch from."""
        return self._list("resourceslices", SLICES, _slices_of(node, driver))

    def watch_slices(
        self, node: str, driver: str, resource_version: str
    ) -> Iterator[tuple[str, Json]]:
        """Stream changes of a driver's slices of one node, as :meth:`watch_pods` does."""
        query = {**_slices_of(node, driver), "resourceVersion": resource_version}
        return self._watch("resourceslices", SLICES, query)

    def create_slice(self, body: Json) -> None:
        """Create a slice; one that exists already is a conflict (409)."""
        with self.failures.observe("create", "resourceslices"):
            self._client.call("POST", SLICES, body, timeout=_PATCH_SECONDS)

    def patch_slice(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a slice."""
        self._patch("resourceslices", f"{SLICES}/{quoted(name)}", patch)

    def delete_slice(self, name: str) -> None:
        """Delete a slice."""
        with self.failures.observe("delete", "resourceslices"):
            self._client.call("DELETE", f"{SLICES}/{quoted(name)}", timeout=_PATCH_SECONDS)

    # --- one request -----------------------------------------------------------------------

    def _list(
        self, resource: str, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str]:
        with self.failures.observe("list", resource):
            items, version, _ = self._client.list(path, {**query, "resourceVersion": "0"}, within)
        return items, version

    def _watch(
        self, resource: str, path: str, query: Mapping[str, str]
    ) -> Iterator[tuple[str, Json]]:
        events = self._client.watch(path, query)
        with self.failures.observe("watch", resource):
            first = next(events, None)  # at the latest a bookmark, after a minute
        if first is not None:
            yield first
            yield from events

    def _patch(self, resource: str, path: str, patch: Json) -> None:
        with self.failures.observe("patch", resource):
            self._client.call("PATCH", path, patch, timeout=_PATCH_SECONDS)

    def close(self) -> None:
        """End a watch in progress at once; further watches end at once too."""
        self._client.close()


def _slices_of(node: str, driver: str) -> Mapping[str, str]:
    return {"fieldSelector": f"spec.nodeName={node},spec.driver={driver}"}
