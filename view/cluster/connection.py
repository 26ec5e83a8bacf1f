"""Finds credentials like ``kubectl``: flag, ``$KUBECONFIG``, home, or the pod's ServiceAccount."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.apiserver.client import Client
from common.apiserver.errors import CredentialsError
from common.apiserver.rest import contexts_of, namespace_of

USER_AGENT = "kubectl-gpu"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


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
) -> ClusterConnection:
    """Read credentials and return a client; no request is sent yet.

    Raises:
        CredentialsError: there are no credentials, or they cannot be used.
    """
    path = _kubeconfig(kubeconfig, environment)
    headers = [("Impersonate-User", user)] * bool(user)
    headers += [("Impersonate-Group", each) for each in groups]
    client = Client(path, user_agent=user_agent, context=context, headers=headers)
    namespace = _own_namespace(_NAMESPACE) if path is None else namespace_of(path, context)
    return ClusterConnection(client, namespace)


def contexts(kubeconfig: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return the contexts of a kubeconfig.

    Raises:
        CredentialsError: there is no kubeconfig, or it cannot be read.
    """
    path = _kubeconfig(kubeconfig, environment)
    return contexts_of(path) if path is not None else []


def _kubeconfig(given: str | None, environment: Mapping[str, str]) -> Path | None:
    """Find the kubeconfig; ``None`` in a pod without one.

    Raises:
        CredentialsError: there is no kubeconfig, or a given file does not exist.
    """
    if given:
        if not Path(given).exists():
            raise CredentialsError(f"stat {given}: no such file or directory")
        return Path(given)
    named = environment.get("KUBECONFIG")
    if named:
        if not any(Path(each).expanduser().exists() for each in named.split(os.pathsep) if each):
            raise CredentialsError(f"$KUBECONFIG names {named}: no such file or directory")
        return Path(named)
    home = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if home.exists():
        return home
    if _IN_CLUSTER in environment:
        return None
    raise CredentialsError(
        "no configuration has been provided: neither --kubeconfig nor $KUBECONFIG is set, and "
        f"{home} does not exist"
    )


def _own_namespace(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
