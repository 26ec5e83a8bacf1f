"""Raw requests to the API server. Only this module here imports ``kubernetes`` and ``urllib3``.

The official client handles credentials, TLS, proxies and connections. Its typed methods and models
are not used: to import them takes longer than the rest of the agent's start, and to build typed
objects for every pod event costs more than all other work. The modules are imported one by one,
because the program defers their packages (``agent.__main__``).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import load_incluster_config

from common.apiserver.errors import CredentialsError
from common.errors import Unavailable

Timeout = float | tuple[float, float]
"""Seconds for all of a request, or for the connection and for each read."""

MOST_KEPT = 32
"""Idle connections that are kept; so many threads can make requests without new connections."""

BROKEN = (urllib3.exceptions.HTTPError, OSError)
"""Errors while reading a response if the connection breaks."""

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"

# The client's errors for an invalid kubeconfig; errors of its YAML parser are added below.
_UNUSABLE = (ConfigException, OSError, ValueError, TypeError)


class Rest:
    """A connection to the API server. Safe to share between threads."""

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        user_agent: str,
        context: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Read the credentials; no request is made yet.

        Args:
            kubeconfig: a kubeconfig file, or several as in ``$KUBECONFIG``; ``None`` for the
                service account of the pod.
            user_agent: name of the program in audit logs.
            context: a context of the kubeconfig; ``None`` for the current one.
            headers: further headers of each request, such as those of impersonation.

        Raises:
            CredentialsError: the credentials cannot be used.
        """
        self._user_agent = user_agent
        self._headers = headers
        self._configuration = Configuration()
        if kubeconfig is None:
            _load_service_account(self._configuration)
        else:
            _load_kubeconfig(self._configuration, kubeconfig, context)
        self._configuration.retries = False
        self._configuration.connection_pool_maxsize = MOST_KEPT
        self._client = RESTClientObject(self._configuration)

    def request(
        self,
        method: str,
        path: str,
        *,
        timeout: Timeout,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | list[Any] | None = None,
    ) -> Any:
        """Make one request.

        Args:
            method: the HTTP method, such as ``GET``.
            path: absolute, quoted.
            timeout: how long to wait.
            query: parameters; sorted by name in the URL.
            body: a JSON object; for ``PATCH`` a merge patch, or a list as JSON patch.

        Returns:
            The response of ``urllib3`` with any status; its body is not read yet.

        Raises:
            Unavailable: no response, or the credentials cannot be renewed.
        """
        try:
            headers = urllib3.HTTPHeaderDict({"Accept": _JSON, "User-Agent": self._user_agent})
            headers.extend([*self._authorization().items(), *self._headers])
        except (*BROKEN, ConfigException) as error:
            raise Unavailable(f"API server: {error}") from error
        if body is not None:
            patch = _JSON_PATCH if isinstance(body, list) else _MERGE_PATCH
            headers["Content-Type"] = patch if method == "PATCH" else _JSON
        url = self._configuration.host + path
        if query:
            url = f"{url}?{urlencode(sorted(query.items()))}"
        try:
            response = self._client.request(
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
        except ApiException as error:  # an error of TLS, not a status of the server
            reason = " ".join(str(error.reason).split())
            raise Unavailable(f"API server: {reason}") from error
        except BROKEN as error:
            raise Unavailable(f"API server: {error}") from error
        return response.response

    @property
    def host(self) -> str:
        """URL of the API server."""
        return str(self._configuration.host)

    def _authorization(self) -> dict[str, str]:
        """Return the header with the token; the client renews an expiring token."""
        token = self._configuration.auth_settings().get("BearerToken")
        return {token["key"]: token["value"]} if token and token["value"] else {}


def _load_service_account(configuration: Configuration) -> None:
    try:
        load_incluster_config(client_configuration=configuration)
    except _UNUSABLE as error:
        raise _unusable("the pod's service account", error) from error


def _load_kubeconfig(configuration: Configuration, path: Path, context: str | None) -> None:
    with _readable(path) as kube_config:
        kube_config.load_kube_config(str(path), context, client_configuration=configuration)


def namespace_of(kubeconfig: Path, context: str | None = None) -> str:
    """Return the namespace of a kubeconfig's context; ``default`` if it has none.

    Args:
        kubeconfig: a kubeconfig file, or several as in ``$KUBECONFIG``.
        context: name of the context; ``None`` for the current one.

    Raises:
        CredentialsError: the file cannot be used, or has no such context.
    """
    with _readable(kubeconfig) as kube_config:
        contexts, current = kube_config.list_kube_config_contexts(str(kubeconfig))
    for each in contexts if context is not None else [current]:
        if context in (None, each["name"]):
            return str(each["context"].get("namespace") or "default")
    raise CredentialsError(f'context "{context}" does not exist')


def contexts_of(kubeconfig: Path) -> list[str]:
    """Return the names of a kubeconfig's contexts.

    Raises:
        CredentialsError: the file cannot be used.
    """
    with _readable(kubeconfig) as kube_config:
        found, _ = kube_config.list_kube_config_contexts(str(kubeconfig))
    return sorted(str(each["name"]) for each in found)


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    """Return the client's module in a context that translates its errors."""
    # Imports OAuth libraries and an HTTP client; no pod of the DaemonSet needs them.
    from kubernetes.config import kube_config  # noqa: PLC0415

    try:
        yield kube_config
    # Through the client, because only the agent's cards file imports PyYAML itself.
    except (*_UNUSABLE, kube_config.yaml.YAMLError) as error:  # type: ignore[attr-defined]
        raise _unusable(str(path), error) from error


def _unusable(where: str, error: Exception) -> CredentialsError:
    return CredentialsError(f"kubeconfig: cannot use {where}: {' '.join(str(error).split())}")
