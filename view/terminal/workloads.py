"""Which pod is meant by a workload, such as ``deploy/NAME``: the one to explain first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from common.apiserver.client import Json, object_path
from common.apiserver.errors import Rejected
from contract.workloads import WORKLOADS, template_of
from placement.pods import read_gpu_pod
from view.cluster.collections import DENIED_EVENTS, NODES, PODS
from view.model.event_facts import SCALED, count_pods
from view.model.manifest_fit import requests_none
from view.model.pod_groups import is_of, most_urgent
from view.model.queues import QueueKey, find_key
from view.model.reports import PodReport, Stage
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


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A Job without pods.

    Attributes:
        found: the Job.
        key: by what its Workload is found.
        marked: whether it is certainly meant for Kueue.
        error: what is said of it otherwise.
    """

    found: Json
    key: QueueKey
    marked: bool
    error: str


def find_pod(context: CommandContext, kind: str, namespace: str, name: str) -> str | QueuedJob:
    """Return the pod of a workload that needs an explanation most; say so if there are several.

    Of a Job without pods that may be in a queue of Kueue, return that.

    Raises:
        CommandError: it has no pod that requests GPUs, or its pods cannot be read.
    """
    own = [replace(each, namespace=namespace) for each in (PODS, DENIED_EVENTS)]
    cluster = context.load([NODES, *own])  # a pod on a node that does not exist has failed
    report = cluster.report()
    pods = [each for each in report.pods if is_of(each, kind, name)]
    denied = [each for each in report.denied if each.namespace == namespace]
    denials = [each for each in denied if is_of(each, kind, name)]
    found = _read(context, kind, namespace, name)
    none = _wants_none(kind, found) if found else ""
    if pods:
        chosen = most_urgent(pods).name
        for each in denials:
            text = f"{each.lacks} of {each.kind} {each.name} cannot be created: {each.message}"
            click.echo(text, err=True)
        if none or (none := _has_all(kind, found, pods)):
            click.echo(f"{kind} {name} {none}", err=True)
        if len(pods) > 1:
            click.echo(f"Found {len(pods)} pods, using pod/{chosen}", err=True)
        return chosen
    for each in denials:
        text = f"{each.lacks} of {kind} {name} cannot be created: {each.message}"
        raise CommandError(f"error: {text}")
    unread = [each for each in report.gaps if each.what == "pods"]
    if unread:
        raise CommandError(f"error: {'. '.join(describe_gaps(unread))}", NOT_KNOWN)
    if found:
        template = template_of(found, WORKLOADS[kind].template)
        if read_gpu_pod({"metadata": {}, **template}, context.names) is None:
            raise CommandError(f'error: {kind} "{name}" {requests_none(template, context.names)}')
    text = f'error: {kind} "{name}" ' + (
        none or f"has no pod that requests GPUs in namespace {namespace}, or does not exist"
    )
    if found and kind == "Job":
        metadata = found["metadata"]
        # Of a Job of a JobSet, the JobSet has the Workload.
        owners = (each for each in metadata.get("ownerReferences") or () if each.get("controller"))
        uids = tuple(each.get("uid") or "" for each in (metadata, *owners))
        key = find_key(metadata, uids, context.names)
        if key is not None or none:
            return QueuedJob(found, key or QueueKey((), uids), key is not None, text)
    raise CommandError(text)


def _read(context: CommandContext, kind: str, namespace: str, name: str) -> Json | None:
    """Read a workload; ``None`` if it does not exist or may not be read."""
    of = WORKLOADS[kind]
    path = object_path(of.resource, namespace, name, api=of.api)
    with as_command_errors():
        try:
            return context.connection.client.find(path, timeout=_SECONDS)
        except Rejected:
            return None


def _wants_none(kind: str, found: Json) -> str:
    """Return by which field a workload has no pods; empty if it is to have some."""
    spec = found.get("spec") or {}
    field = {"Job": "parallelism", "CronJob": ""}.get(kind, "replicas")
    if spec.get("suspend"):
        return "has no new pods: spec.suspend is true"
    return f"has no pods: spec.{field} is 0" if field and spec.get(field) == 0 else ""


def _has_all(kind: str, found: Json | None, pods: Sequence[PodReport]) -> str:
    """Return how many pods run if those are all, and others have been refused; else empty."""
    if found is None or kind not in ("Deployment", *SCALED):
        return ""
    wanted = count_pods(kind, found).wanted
    running = sum(each.stage is Stage.RUNNING for each in pods)
    refused = any(each.stage is Stage.REFUSED for each in pods)
    return f"has all its pods: {running} of {wanted} run" if refused and running >= wanted else ""


def is_pod(context: CommandContext, namespace: str, name: str) -> bool:
    """Return whether there is such a pod, as far as it may be read."""
    path = object_path("pods", namespace, name)
    with as_command_errors():
        try:
            return context.connection.client.find(path, timeout=_SECONDS) is not None
        except Rejected:
            return False
