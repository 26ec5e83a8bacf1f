"""Reads our programs' objects, and GPU pods, into the facts that the checks use. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from contract.allocation import Evidence
from contract.claims import named_template
from contract.demand import ContainerKind
from contract.names import Names
from contract.pod_annotations import read_allocations
from view.model.doctor.facts import (
    AGENT,
    PROXY,
    DaemonSet,
    ManagedObject,
    OrUnread,
    ProgramPod,
    RefusedPod,
    ReportedAllocation,
    UnreadSource,
    UnrecordedContainer,
)
from view.model.node_facts import find_condition
from view.model.pod_facts import PodFacts, failing, read_pod_facts, read_statuses
from view.model.reports import Stage

_NAME_LABEL = "app.kubernetes.io/name"
_COMPONENT_LABEL = "app.kubernetes.io/component"
_BEFORE_START = ("ContainerCreating", "PodInitializing")
_ENFORCEMENT = re.compile(r"--enforcement[= ](\S+)")
_UNREACHED = re.compile(
    r'"https?://[^"]*/(?:filter|prioritize|bind)": |failed \w+ with extender at URL '
)
"""In kube-scheduler's message if its request to an extender fails, or its response is an error."""

_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")

_Object = Mapping[str, Any]

# --- our programs -----------------------------------------------------------------------


def component_of(obj: _Object) -> str:
    """Return the program that a pod runs, such as :data:`facts.AGENT`; empty if it has no label."""
    return _label(obj, _NAME_LABEL)


def is_ready(pod: _Object) -> bool:
    """Return whether a pod is ready."""
    return find_condition(_status(pod), "Ready").get("status") == "True"


def is_ending(pod: _Object) -> bool:
    """Return whether a pod is being deleted or has ended: its controller makes another one."""
    ended = _status(pod).get("phase") in ("Succeeded", "Failed")
    return ended or bool(pod["metadata"].get("deletionTimestamp"))


def is_starting(pod: _Object) -> bool:
    """Return whether a container of a pod is being created: only Events say what it waits for."""
    return any(each.reason in _BEFORE_START for each in read_statuses(_status(pod)))


def read_program(pod: _Object, warning: str, response: str = "") -> ProgramPod:
    """Read a pod of ours.

    *warning* is the message of the newest warning about it, *response* what it responds to a probe
    of its readiness; both may be empty.
    """
    metadata, spec, ready = pod["metadata"], pod["spec"], is_ready(pod)
    since = find_condition(_status(pod), "Ready").get("lastTransitionTime")
    return ProgramPod(
        component=component_of(pod),
        name=metadata["name"],
        node=spec.get("nodeName") or _target_node(spec),
        bound=bool(spec.get("nodeName")),
        image=spec["containers"][0].get("image") or "",
        ready=ready,
        why="" if ready else _not_ready_reason(_status(pod), warning, response),
        created=parse_time(metadata.get("creationTimestamp")),
        due=parse_time(metadata.get("deletionTimestamp")),
        since=parse_time(since) if ready else None,
        starting=None if ready else _starting(pod),
    )


def _starting(pod: _Object) -> datetime | None:
    """Return since when a pod that is not ready starts; ``None`` if a container of it fails.

    That is the newest start; after a restart, at the latest when the pod was no longer ready:
    containers that fail start again and again.
    """
    statuses = read_statuses(_status(pod))
    if failing(statuses) is not None:
        return None
    created = parse_time(pod["metadata"].get("creationTimestamp"))
    starts = [parse_time(each.started) for each in statuses if each.state == "running"]
    begun = max(filter(None, (created, *starts)), default=None)
    lost = parse_time(find_condition(_status(pod), "Ready").get("lastTransitionTime"))
    if begun is None or lost is None or not any(each.restarts for each in statuses):
        return begun
    return min(begun, lost)


def _target_node(spec: _Object) -> str:
    """Return the node for which a DaemonSet's pod is pending; empty for other pods."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["values"]:
                return str(each["values"][0])
    return ""


def _not_ready_reason(status: _Object, warning: str, response: str) -> str:
    for each in read_statuses(status):
        ending, waits = each.ending, each.state == "waiting"
        if not waits and (each.state != "terminated" or ending is None or not ending.exit_code):
            continue
        reason = each.reason if waits or ending is None else ending.reason
        code = f", last exit code {ending.exit_code}" if ending and (waits or each.restarts) else ""
        # After a crash the waiting state has the back-off; the last state has the reason.
        message = each.message if ending is None else ending.message
        # A container that is being created has no message: missing volumes are in Events.
        if not message and reason in _BEFORE_START:
            message = warning
        # Without container IDs equal messages of several nodes are one finding.
        message = _CONTAINER_ID.sub("...", message)
        return f"{each.name}: {reason or each.state}{code}" + (f": {message}" if message else "")
    if response:
        return response
    for kind in ("PodScheduled", "Ready"):
        condition = find_condition(status, kind)
        text = condition.get("message") or condition.get("reason")
        if condition.get("status") != "True" and text:
            return str(text)
    return str(status.get("message") or status.get("phase") or "")


def read_proxy_starts(pods: Iterable[_Object]) -> Mapping[str, datetime]:
    """Return when the newest container of a proxy started on each node."""
    starts: dict[str, datetime] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName") or ""
        for each in read_statuses(_status(pod)) if component_of(pod) == PROXY else ():
            start = parse_time(each.started) if each.state == "running" else None
            if start:
                starts[node] = max(start, starts.get(node, start))
    return starts


def read_daemonset(obj: _Object) -> DaemonSet:
    """Read the counts of a DaemonSet."""
    fields = (
        *("desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled"),
        "updatedNumberScheduled",
    )
    return DaemonSet(*(_status(obj).get(field) or 0 for field in fields))


def read_enforcement(daemonsets: Mapping[str, _Object]) -> OrUnread[str]:
    """Return the enforcement that the agents' DaemonSet sets."""
    if AGENT not in daemonsets:
        return UnreadSource(f"DaemonSet {AGENT}, which sets it, is missing")
    found = "none"
    for container in daemonsets[AGENT]["spec"]["template"]["spec"]["containers"]:
        for each in container.get("env") or ():
            if each["name"] == "GPU_TURNSTILE_ENFORCEMENT":
                found = str(each.get("value") or "none")
        # As click reads them: flags win, the last one counts.
        words = (*(container.get("command") or ()), *(container.get("args") or ()))
        found = (_ENFORCEMENT.findall(" ".join(map(str, words))) or [found])[-1]
    return found


def read_managed(kind: str, obj: _Object) -> ManagedObject:
    """Read an object that carries our label, with the Helm release that it belongs to."""
    metadata = obj["metadata"]
    release, namespace = (
        (metadata.get("annotations") or {}).get(f"meta.helm.sh/release-{each}")
        for each in ("name", "namespace")
    )
    return ManagedObject(
        kind,
        metadata["name"],
        _label(obj, _COMPONENT_LABEL),
        (release, namespace) if release and namespace else None,
        (obj.get("spec") or {}).get("replicas"),
    )


def read_queue(obj: _Object, names: Names) -> tuple[str, str] | None:
    """Read a ClusterQueue of Kueue (``v1beta1`` and ``v1beta2``).

    Returns:
        Its name, and for whom it evicts other pods, in the words of ``spec.preemption``: without a
        cohort only its own. ``None`` if it has none of our resources.
    """
    spec = obj["spec"]
    groups = spec.get("resourceGroups") or ()
    if not any(names.resources.keys() & set(each["coveredResources"]) for each in groups):
        return None
    given = spec.get("preemption") or {}
    policies = {"withinClusterQueue": given.get("withinClusterQueue")}
    if spec.get("cohortName") or spec.get("cohort"):
        policies["reclaimWithinCohort"] = given.get("reclaimWithinCohort")
        policies["borrowWithinCohort"] = (given.get("borrowWithinCohort") or {}).get("policy")
    found = (
        f"{key}: {policy}" for key, policy in policies.items() if policy not in (None, "Never")
    )
    return obj["metadata"]["name"], ", ".join(found)


def names_check(obj: _Object, checks: Collection[str]) -> bool:
    """Return whether a ClusterQueue of Kueue names one of these AdmissionChecks."""
    spec = obj["spec"]
    listed = [each["name"] for each in _listed(spec.get("admissionChecksStrategy"))]
    return bool({*listed, *(spec.get("admissionChecks") or ())} & {*checks})


def _listed(strategy: _Object | None) -> Sequence[_Object]:
    return (strategy or {}).get("admissionChecks") or ()


# --- GPU pods ---------------------------------------------------------------------------


class GpuPods(NamedTuple):
    """What is read of all pods; each attribute is the fact of this name."""

    allocations: list[ReportedAllocation | UnrecordedContainer]
    bound: dict[str, str]
    refused: list[RefusedPod]
    unreached: list[str]
    waiting: dict[str, bool]


def read_gpu_pods(pods: Iterable[_Object], names: Names) -> GpuPods:
    """Read all pods that request GPUs."""
    found = GpuPods([], {}, [], [], {})
    for pod in pods:
        facts = read_pod_facts(pod, names)
        if facts is None:
            continue
        found.allocations.extend(_allocations(pod, facts, names))
        if facts.info.node and not facts.ended and not facts.report.deleting:
            found.bound[str(facts.info)] = facts.info.node
        at = parse_time(_status(pod).get("startTime"))  # the kubelet's status always has it
        if facts.report.stage is Stage.REFUSED and at:
            found.refused.append(RefusedPod(facts.report, at))
        elif facts.report.stage is Stage.PENDING:
            found.waiting[str(facts.info)] = bool(named_template(pod))
            if _UNREACHED.search(facts.unscheduled[1]):
                found.unreached.append(facts.unscheduled[1])
    return found


def _allocations(
    pod: _Object, facts: PodFacts, names: Names
) -> Iterator[ReportedAllocation | UnrecordedContainer]:
    """Yield the allocations of a pod; while it ends they may change any time."""
    info, report = facts.info, facts.report
    if facts.ended or report.deleting:
        return
    # Also those that contradict the request: they differ from what the kubelet has.
    written = read_allocations(pod["metadata"].get("annotations") or {}, names, [])
    started = parse_time(_status(pod).get("startTime"))
    for container in report.containers:
        allocation, name = written.get(container.name), container.name
        if container.kind == ContainerKind.INIT.value:
            continue  # its devices are reusable
        if allocation is not None:
            cards, cores = frozenset(allocation.cards), allocation.cores
            by_claim = allocation.evidence is Evidence.CLAIM
            yield ReportedAllocation(
                report.namespace, report.name, name, info.node, cards, cores, info.running, by_claim
            )
        elif info.running:
            yield UnrecordedContainer(str(info.id), name, info.node, started)


def parse_time(text: str | None) -> datetime | None:
    """Parse a time of the API server; ``None`` if there is none."""
    return datetime.fromisoformat(text) if text else None


def _status(obj: _Object) -> _Object:
    found: _Object = obj.get("status") or {}
    return found


def _label(obj: _Object, label: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(label) or "")
