"""The API server: pods and templates are read, templates written."""

from pathlib import Path

from common.apiserver.client import Client, Json, object_path
from common.apiserver.errors import CredentialsError
from common.errors import SettingsError

_API = "/apis/resource.k8s.io/v1"
_TEMPLATES = "resourceclaimtemplates"
TEMPLATES = f"{_API}/{_TEMPLATES}"
"""The path of all templates."""
_SECONDS = 10.0


class ClaimsApi(Client):
    """A client for one replica. Thread-safe.

    All methods raise ``Rejected`` if the API server rejects the request, and ``Unavailable`` if no
    usable response came in time; a write may then have succeeded.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        """Read the credentials of a kubeconfig file, or, with ``None``, of the pod.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        try:
            super().__init__(kubeconfig, user_agent="gpu-turnstile-claims")
        except CredentialsError as error:
            raise SettingsError(f"--{error}") from error

    def find_pod(self, namespace: str, name: str) -> Json | None:
        """Get a pod; ``None`` if there is none."""
        return self.find(object_path("pods", namespace, name), timeout=_SECONDS)

    def create_template(self, namespace: str, template: Json) -> None:
        """Create a ResourceClaimTemplate; one that exists already is a conflict (409)."""
        path = object_path(_TEMPLATES, namespace, api=_API)
        self.call("POST", path, template, timeout=_SECONDS)

    def delete_template(self, namespace: str, name: str, uid: str) -> None:
        """Delete a ResourceClaimTemplate, unless it is another one by now (409)."""
        path = object_path(_TEMPLATES, namespace, name, api=_API)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        self.call("DELETE", path, options, timeout=_SECONDS)
