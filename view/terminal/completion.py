"""Shell completion of the names of pods, nodes, namespaces and contexts."""

import os
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from common.apiserver.client import Json, object_path
from common.apiserver.errors import REQUEST_ERRORS, CredentialsError
from contract.names import DEFAULT_DOMAIN, Names
from contract.requests import asks_for_gpus
from view.cluster.connection import connect, contexts

_SECONDS = 2.0


_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(
    path: Callable[[str], str], wanted: Callable[[Json, Names], bool] = lambda _obj, _names: True
) -> _Complete:
    """Build a completion of object names; *path* returns the URL path of a list."""

    def complete(context: click.Context, _of: click.Parameter, prefix: str) -> list[CompletionItem]:
        params = context.params
        names = Names(params.get("domain") or DEFAULT_DOMAIN)
        try:
            connection = connect(params.get("kubeconfig"), params.get("context"), os.environ)
            listed = path(params.get("namespace") or connection.namespace)
            objects, _, _ = connection.client.list(listed, {}, _SECONDS)
        except (CredentialsError, *REQUEST_ERRORS):
            return []
        named = (each["metadata"]["name"] for each in objects if wanted(each, names))
        return [CompletionItem(name) for name in sorted(named) if name.startswith(prefix)]

    return complete


complete_pod = _complete(
    lambda namespace: object_path("pods", namespace),
    lambda obj, names: asks_for_gpus(obj.get("spec"), names),
)
complete_node = _complete(
    lambda _: "/api/v1/nodes",
    lambda obj, names: names.gpu_cards in (obj["metadata"].get("annotations") or {}),
)
complete_namespace = _complete(lambda _: "/api/v1/namespaces")


def complete_context(
    context: click.Context, _: click.Parameter, prefix: str
) -> list[CompletionItem]:
    """Complete names of contexts."""
    try:
        found = contexts(context.params.get("kubeconfig"), os.environ)
    except CredentialsError:
        return []
    return [CompletionItem(name) for name in found if name.startswith(prefix)]
