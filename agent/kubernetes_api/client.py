"""The agent's requests to the API server, with raw JSON."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent.errors import SettingsError, Unavailable
from agent.kubernetes_api.access import RequestFailures
from common.apiserver.client import Client, Json, list_slices, object_path, quoted
from common.apiserver.errors import CredentialsError, Gone, Rejected

__all__ = ["Api", "Gone", "Json", "Rejected"]

_GET_SECONDS = 1.0
_PATCH_SECONDS = 10.0
_USER_AGENT = "gpu-turnstile-agent"

RESOURCE_API = "/apis/resource.k8s.io/v1"
CLAIMS, SLICES = f"{RESOURCE_API}/resourceclaims", f"{RESOURCE_API}/resourceslices"
"""The paths of all claims and of all slices."""

_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Api(Client):
    """A client for one node's agent. Safe to share between threads.

    What the API server refuses is made again by ``failures.retry``, writes as dry runs.

    Every method raises ``Unavailable`` if there is no usable response in time, and ``Rejected`` or
    ``Gone`` if the API server returns an error; those that get a pod or a claim make these
    ``Unavailable``, too.

    Attributes:
        failures: the kinds of requests that fail now.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        """Read the credentials of a kubeconfig file, or, with ``None``, of the pod.

        Raises:
            SettingsError: neither can be used.
        """
        try:
            super().__init__(kubeconfig, user_agent=_USER_AGENT)
        except CredentialsError as error:
            raise SettingsError(str(error)) from error
        self.failures = RequestFailures()

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        """Get one pod *within* so many seconds, at most one second; ``None`` if there is none."""
        timeout = min(within or _GET_SECONDS, _GET_SECONDS)
        return self._get("pod", namespace, name, object_path("pods", namespace, name), timeout)

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to a pod; the API server rejects a patch with another UID."""
        self._patch(object_path("pods", namespace, name), patch)

    def get_node(self, name: str) -> Json:
        """Get a node, from the API server's cache."""
        path, query = f"/api/v1/nodes/{quoted(name)}", {"resourceVersion": "0"}
        return self.call("GET", path, timeout=_PATCH_SECONDS, query=query)

    def patch_node(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node."""
        self._patch(f"/api/v1/nodes/{quoted(name)}", patch)

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an event."""
        self._patch(object_path("events", namespace, name), patch)

    def list_slices(self, node: str, driver: str) -> Sequence[Json]:
        """List the slices of a driver for a node; none if the API server serves no slices."""
        return list_slices(self, {"fieldSelector": f"spec.nodeName={node},spec.driver={driver}"})

    # --- Dynamic Resource Allocation ------------------------------------------------------

    def patch_node_status(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a node's status."""
        self._patch(f"/api/v1/nodes/{quoted(name)}/status", patch)

    def get_claim(self, namespace: str, name: str) -> Json | None:
        """Get one claim; ``None`` if there is none."""
        path = object_path("resourceclaims", namespace, name, api=RESOURCE_API)
        return self._get("claim", namespace, name, path, _GET_SECONDS)

    def create_slice(self, body: Json) -> None:
        """Create a slice; one that exists already is a conflict (409)."""
        self.call("POST", SLICES, body, timeout=_PATCH_SECONDS)

    def patch_slice(self, name: str, patch: Json) -> None:
        """Apply a merge patch to a slice."""
        self._patch(f"{SLICES}/{quoted(name)}", patch)

    def delete_slice(self, name: str) -> None:
        """Delete a slice."""
        self.call("DELETE", f"{SLICES}/{quoted(name)}", timeout=_PATCH_SECONDS)

    # --- one request -----------------------------------------------------------------------

    def call(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        """Make one request, as :meth:`Client.call` does."""
        call, query = super().call, dict(more.pop("query", None) or {})
        dry = query if method == "GET" else {**query, "dryRun": "All"}
        retry = partial(call, method, path, body, query=dry, **more)
        with self.failures.observe(_VERBS[method], _resource_of(path), retry):
            return call(method, path, body, query=query, **more)

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        """Stream the events of a collection, as :meth:`Client.watch` does."""
        events = super().watch(path, query)
        with self.failures.observe("watch", _resource_of(path)):
            first = next(events, None)  # at the latest a bookmark, after a minute
        if first is not None:
            yield first
            yield from events

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        """List a collection, as :meth:`Client.list` does."""
        retry = partial(super().list, path, {**query, "limit": "1"}, within)
        with self.failures.observe("list", _resource_of(path), retry):
            return super().list(path, query, within)

    def _get(self, what: str, namespace: str, name: str, path: str, timeout: float) -> Json | None:
        try:
            return self.find(path, timeout=timeout)
        except (Rejected, Gone) as error:
            raise Unavailable(f"GET {what} {namespace}/{name}: {error}") from error

    def _patch(self, path: str, patch: Json) -> None:
        self.call("PATCH", path, patch, timeout=_PATCH_SECONDS)


def _resource_of(path: str) -> str:
    """Return the resource of a path as RBAC names it, such as ``nodes/status``."""
    _, root, *parts = path.split("/")
    parts = parts[1:] if root == "api" else parts[2:]
    resource, *rest = parts[2:] if parts[0] == "namespaces" else parts
    return "/".join((resource, *rest[1:]))
