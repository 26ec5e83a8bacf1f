"""The API server: pods and templates are listed and watched, templates and Events written."""

from collections.abc import Iterator
from pathlib import Path

from common.apiserver.client import Client, Json, object_path, pages
from common.apiserver.errors import CredentialsError
from common.errors import SettingsError

_API = "/apis/resource.k8s.io/v1"
_TEMPLATES = "resourceclaimtemplates"
_PAGE = 100
"""Objects per page: a whole page is in memory, and a hostile pod has a megabyte."""
_SECONDS = 10.0


class ClaimsApi:
    """A client for one replica. Thread-safe.

    All methods raise ``Rejected`` if the API server rejects the request, and ``Unavailable`` if no
    usable response came in time; a write may then have succeeded.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        """Read the credentials; no request is sent yet.

        Args:
            kubeconfig: a kubeconfig file; ``None`` for the pod's service account.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        try:
            self._client = Client(kubeconfig, user_agent="gpu-turnstile-claims")
        except CredentialsError as error:
            raise SettingsError(f"--{error}") from error
        self.pods = WatchedResource(
            self._client, "/api/v1/pods", "status.phase!=Succeeded,status.phase!=Failed"
        )
        self.templates = WatchedResource(self._client, f"{_API}/{_TEMPLATES}")

    def find_pod(self, namespace: str, name: str) -> Json | None:
        """Get a pod; ``None`` if there is none."""
        return self._client.find(object_path("pods", namespace, name), timeout=_SECONDS)

    def create_template(self, namespace: str, template: Json) -> None:
        """Create a ResourceClaimTemplate; one that exists already is a conflict (409)."""
        path = object_path(_TEMPLATES, namespace, api=_API)
        self._client.call("POST", path, template, timeout=_SECONDS)

    def delete_template(self, namespace: str, name: str, uid: str) -> None:
        """Delete a ResourceClaimTemplate, unless it is another one by now (409)."""
        path = object_path(_TEMPLATES, namespace, name, api=_API)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        self._client.call("DELETE", path, options, timeout=_SECONDS)

    def create_event(self, namespace: str, event: Json) -> None:
        """Create an Event; one that exists already is a conflict (409)."""
        self._client.call("POST", object_path("events", namespace), event, timeout=_SECONDS)

    def close(self) -> None:
        """End every watch and wait at once."""
        self._client.close()


class WatchedResource:
    """One collection: all its objects, page by page, and their changes."""

    def __init__(self, client: Client, path: str, fields: str = "") -> None:
        """Prepare; *fields* is a field selector, an object that leaves it is ``DELETED``."""
        self._client = client
        self._path = path
        self._query = {"fieldSelector": fields} if fields else {}

    def pages(self) -> Iterator[tuple[list[Json], str]]:
        """Yield the pages of a list, see :func:`common.apiserver.client.pages`."""
        return pages(self._client, self._path, self._query, limit=_PAGE)

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes."""
        return self._client.watch(self._path, {**self._query, "resourceVersion": version})
