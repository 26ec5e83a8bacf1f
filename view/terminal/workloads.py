"""Which pod is meant by a workload, such as ``deploy/NAME``: the one to explain first."""

from dataclasses import replace

import click

from common.apiserver.client import object_path
from common.apiserver.errors import Rejected
from contract.workloads import WORKLOADS
from view.cluster.collections import DENIED_EVENTS, PODS
from view.model.pod_groups import is_of, most_urgent
from view.model.words import describe_gaps
from view.terminal.context import NOT_KNOWN, CommandContext
from view.terminal.faults import CommandError, as_command_errors

_SHORT = {
    "deploy": "Deployment",
    "sts": "StatefulSet",
    "ds": "DaemonSet",
    "rs": "ReplicaSet",
    "rc": "ReplicationController",
    "cj": "CronJob",
}
_KINDS = {
    **_SHORT,
    **{kind.lower(): kind for kind in WORKLOADS},
    **{each.resource: kind for kind, each in WORKLOADS.items()},
}
_SECONDS = 10.0


def workload_kind(word: str) -> str:
    """Return the kind of workload that a word means, as for ``kubectl``; empty if it means none.

    It is the kind, its plural or its short name, perhaps with its API group: ``deploy``,
    ``deployments``, ``deployment.apps``.
    """
    name, _, group = word.partition(".")
    kind = _KINDS.get(name.lower(), "")
    return kind if kind and group in ("", WORKLOADS[kind].group) else ""


def find_pod(context: CommandContext, kind: str, namespace: str, name: str) -> str:
    """Return the pod of a workload that needs an explanation most; say so if there are several.

    Raises:
        CommandError: it has no pod that requests GPUs, or its pods cannot be read.
    """
    cluster = context.load([replace(each, namespace=namespace) for each in (PODS, DENIED_EVENTS)])
    report = cluster.report()
    pods = [each for each in report.pods if is_of(each, kind, name)]
    if len(pods) > 1:
        found = most_urgent(pods).name
        click.echo(f"Found {len(pods)} pods, using pod/{found}", err=True)
        return found
    if pods:
        return pods[0].name
    for each in report.denied:
        if each.namespace == namespace and is_of(each, kind, name):
            raise CommandError(f"error: pods of {kind} {name} cannot be created: {each.message}")
    unread = [each for each in report.gaps if each.what == "pods"]
    if unread:
        raise CommandError(f"error: {'. '.join(describe_gaps(unread))}", NOT_KNOWN)
    raise CommandError(
        f'error: {kind} "{name}" has no pod that requests GPUs in namespace {namespace}, or does '
        "not exist"
    )


def is_pod(context: CommandContext, namespace: str, name: str) -> bool:
    """Return whether there is such a pod, as far as it may be read."""
    path = object_path("pods", namespace, name)
    with as_command_errors():
        try:
            return context.connection.client.find(path, timeout=_SECONDS) is not None
        except Rejected:
            return False
