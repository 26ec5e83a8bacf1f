"""The API server: pods and templates are watched, templates written."""

from pathlib import Path

from claims.state import ClaimedPod, KnownTemplate, TemplateState, read_template
from common.apiserver.client import Client, Json, object_path
from common.apiserver.errors import CredentialsError
from common.apiserver.follower import Collection, Follower, Followers
from common.errors import SettingsError

_API = "/apis/resource.k8s.io/v1"
_TEMPLATES = "resourceclaimtemplates"
TEMPLATES = f"{_API}/{_TEMPLATES}"
"""The path of all templates."""
_SECONDS = 10.0
_PAGE = 100
"""Objects per page: a whole page is in memory, and a hostile pod has a megabyte."""


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


def follow(state: TemplateState, api: ClaimsApi) -> Followers:
    """Return the watches that update the state: of pods that have not ended, and of templates.

    No request is sent before they are started.
    """

    def drop(obj: Json) -> None:
        state.drop(obj["metadata"]["uid"])

    pods = Collection(
        client=api,
        path="/api/v1/pods",
        kind="pod",
        read=state.read_pod,
        replace=lambda listed: state.replace(ClaimedPod, [*listed]),
        put=state.put,
        drop=drop,
        query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
        limit=_PAGE,
    )
    templates = Collection(
        client=api,
        path=TEMPLATES,
        kind="template",
        read=read_template,
        replace=lambda listed: state.replace(KnownTemplate, [*listed]),
        put=state.put,
        drop=drop,
        limit=_PAGE,
    )
    return Followers(
        pods=Follower(pods, trouble="no pods from the API server"),
        templates=Follower(templates, trouble="no templates from the API server"),
    )
