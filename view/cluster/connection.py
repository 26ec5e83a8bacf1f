"""Finds credentials like ``kubectl``: flag, ``$KUBECONFIG``, home, or the pod's ServiceAccount."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.apiserver.access import (
    SERVICE_ACCOUNT,
    Impersonation,
    impersonation_headers,
    service_account,
)
from common.apiserver.client import Client
from common.apiserver.errors import CredentialsError
from common.apiserver.kubeconfig import context_names, load_context
from common.apiserver.rest import OnWait, log_wait

USER_AGENT = "kubectl-gpu"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """A client, and the namespace to use if none is given."""

    client: Client
    namespace: str


def connect(  # noqa: PLR0913 -- flags of kubectl, by keyword
    kubeconfig: str | None,
    context: str | None,
    environment: Mapping[str, str],
    *,
    user_agent: str = USER_AGENT,
    user: str = "",
    groups: Sequence[str] = (),
    request_timeout: float | None = None,
    on_wait: OnWait = log_wait,
) -> ClusterConnection:
    """Read credentials and return a client; no request is sent yet.

    *on_wait* is called before each wait that the API server asks for.

    Raises:
        CredentialsError: there are no credentials, or they cannot be used.
    """
    paths = _kubeconfigs(kubeconfig, environment)
    if paths:
        flags = Impersonation(user, groups)
        access, namespace = load_context(paths, context, impersonation=flags)
    else:
        headers = impersonation_headers(user, "", groups, {})
        access = replace(service_account(environment), impersonation=headers)
        namespace = _own_namespace(SERVICE_ACCOUNT / "namespace")
    client = Client(access, user_agent=user_agent, request_timeout=request_timeout, on_wait=on_wait)
    return ClusterConnection(client, namespace)


def contexts(kubeconfig: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return the contexts of a kubeconfig.

    Raises:
        CredentialsError: there is no kubeconfig, or it cannot be read.
    """
    paths = _kubeconfigs(kubeconfig, environment)
    return context_names(paths) if paths else []


def _kubeconfigs(given: str | None, environment: Mapping[str, str]) -> list[Path]:
    """Find the kubeconfig files to merge; none in a pod without one.

    Raises:
        CredentialsError: there is no kubeconfig, or a given file does not exist.
    """
    if given:
        if not Path(given).exists():
            raise CredentialsError(f"stat {given}: no such file or directory")
        return [Path(given)]
    named = environment.get("KUBECONFIG")
    if named:
        paths = [Path(each).expanduser() for each in named.split(os.pathsep) if each]
        if not any(each.exists() for each in paths):
            raise CredentialsError(f"$KUBECONFIG names {named}: no such file or directory")
        return paths
    home = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if home.exists():
        return [home]
    if _IN_CLUSTER in environment:
        return []
    raise CredentialsError(
        "no configuration has been provided: neither --kubeconfig nor $KUBECONFIG is set, and "
        f"{home} does not exist"
    )


def _own_namespace(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
