"""The names that a shell may complete: of pods, nodes and namespaces."""

import os
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from common.apiserver.client import Json, object_path
from common.apiserver.errors import CredentialsError, Gone, Rejected
from common.errors import Unavailable
from contract.demand import asks_for_gpus
from contract.names import DEFAULT_DOMAIN, Names
from view.cluster.connection import Connection, connect, contexts

_SECONDS = 2.0


def complete_pod(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the name of a pod that asks for GPUs."""
    names = Names(context.params.get("domain") or DEFAULT_DOMAIN)
    namespace = context.params.get("namespace")
    return _listed(
        context,
        begun,
        lambda connection: object_path("pods", namespace or connection.namespace),
        lambda obj: asks_for_gpus(obj.get("spec"), names),
    )


def complete_node(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the name of a node with GPUs."""
    names = Names(context.params.get("domain") or DEFAULT_DOMAIN)
    return _listed(
        context,
        begun,
        lambda _: "/api/v1/nodes",
        lambda obj: names.gpu_cards in (obj["metadata"].get("annotations") or {}),
    )


def complete_namespace(
    context: click.Context, _: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Complete a namespace."""
    return _listed(context, begun, lambda _: "/api/v1/namespaces", lambda _: True)


def complete_context(
    context: click.Context, _: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Complete the name of a context."""
    try:
        found = contexts(context.params.get("kubeconfig"), os.environ)
    except CredentialsError:
        return []
    return [CompletionItem(name) for name in found if name.startswith(begun)]


def _listed(
    context: click.Context,
    begun: str,
    path: Callable[[Connection], str],
    wanted: Callable[[Json], bool],
) -> list[CompletionItem]:
    try:
        params = context.params
        connection = connect(params.get("kubeconfig"), params.get("context"), os.environ)
        objects, _, _ = connection.client.list(path(connection), {}, _SECONDS)
    except (CredentialsError, Gone, Rejected, Unavailable):
        return []
    named = (each["metadata"]["name"] for each in objects if wanted(each))
    return [CompletionItem(name) for name in sorted(named) if name.startswith(begun)]
