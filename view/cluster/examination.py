"""Reads the facts for ``kubectl gpu doctor``, in parallel; what cannot be read is marked."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from common.apiserver.client import Client, Json, object_path, pages, quoted
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from contract.claims import MODE_LABEL, driver_name, named_template
from contract.demand import ContainerKind
from contract.devices import CORES, MEMORY, UUID
from contract.inventory import Amounts
from contract.names import Names
from contract.pod_annotations import read_allocations
from contract.quantity import parse_quantity
from placement.pods import read_gpu_pod
from view.cluster.agents import AGENT_NAMESPACE, read_metrics
from view.cluster.collections import FORBIDDEN
from view.model.doctor.facts import (
    AGENT,
    EXTENDER,
    KUBE_SCHEDULER,
    PROXY,
    WEBHOOK,
    DaemonSet,
    DryRun,
    Facts,
    Lease,
    ManagedObject,
    NodeSlice,
    OrUnread,
    ProgramPod,
    RefusedPod,
    ReportedAllocation,
    Samples,
    UnreadSource,
    UnrecordedContainer,
    WebhookEntry,
)
from view.model.nodes import read_node
from view.model.pods import read_pod_facts
from view.model.reports import Stage
from view.model.words import clamp

NAMESPACE = "gpu-turnstile"
PART_OF = "app.kubernetes.io/part-of=gpu-turnstile"
_NAME_LABEL = "app.kubernetes.io/name"
_COMPONENT_LABEL = "app.kubernetes.io/component"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_DRA = "/apis/resource.k8s.io/v1"
_PREFIX = "gpu_turnstile_"
_FACT_OF_PROGRAM = {
    AGENT: "agents",
    PROXY: "proxies",
    WEBHOOK: "webhooks",
    EXTENDER: "extenders",
    KUBE_SCHEDULER: "extenders",
}
"""Programs whose metrics are read, and the fact that gets them."""

_BEFORE_START = ("ContainerCreating", "PodInitializing")
_SECONDS = 5.0
_AT_ONCE = 32
_ENFORCEMENT = re.compile(r"--enforcement[= ](\S+)")
_UNREACHED = re.compile(
    r'"https?://[^"]*/(?:filter|prioritize|bind)": |failed \w+ with extender at URL '
)
"""In kube-scheduler's message if its request to an extender fails, or its response is an error."""

_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")

_KINDS = {
    "Deployment": "/apis/apps/v1/deployments",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "CronJob": "/apis/batch/v1/cronjobs",
    "Job": "/apis/batch/v1/jobs",
    "Service": "/api/v1/services",
    "ServiceAccount": "/api/v1/serviceaccounts",
    "ConfigMap": "/api/v1/configmaps",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
"""Kinds of objects that may be left over. Secrets are not read: they hold keys."""

T = TypeVar("T")
R = TypeVar("R")


def collect_facts(client: Client, names: Names, namespace: str, node: str | None = None) -> Facts:
    """Read all facts.

    Args:
        client: of the API server.
        names: the contract's names.
        namespace: where a pod is created as a dry run.
        node: the only node whose programs' metrics are read; ``None`` for all.

    Returns:
        The facts; one that could not be read is an :class:`UnreadSource` with the API server's
        message.

    Raises:
        Unavailable: the API server does not respond at all.
    """
    version = _version(client)
    parts: Mapping[str, Callable[[], Any]] = {
        "pods": lambda: _own_pods(client),
        "daemonsets": lambda: _daemonsets(client),
        "nodes": lambda: [read_node(each, names) for each in _all(client, "/api/v1/nodes")],
        "mutating": lambda: _webhooks(client),
        "policies": lambda: _policies(client),
        "dry_run": lambda: _create_dry_run(client, names, namespace),
        "leases": lambda: _leases(client),
        "gpu_pods": lambda: _gpu_pods(client, names, node),
        "managed": lambda: _managed_objects(client),
        "slices": lambda: _slices(client, names),
        "device_class": lambda: _has_device_class(client, names),
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool, client.interruptible():
        futures = {part: pool.submit(_maybe, read) for part, read in parts.items()}
        pods: OrUnread[Sequence[Json]] = futures.pop("pods").result()
        found: dict[str, Any] = {
            **_metrics(client, pool, () if isinstance(pods, UnreadSource) else pods, node),
            **{part: future.result() for part, future in futures.items()},
        }
    daemonsets: OrUnread[Mapping[str, Json]] = found.pop("daemonsets")
    gpu_pods: OrUnread[_GpuPods] = found.pop("gpu_pods")
    return Facts(
        now=datetime.now(UTC),
        domain=names.domain,
        version=version,
        programs=_derive(pods, lambda pods: _programs(client, pods)),
        daemonsets=_derive(daemonsets, _counts),
        enforcement=_derive(daemonsets, _enforcement),
        proxy_starts=_derive(pods, _proxy_starts),
        allocations=_derive(gpu_pods, lambda found: found.allocations),
        refused=_derive(gpu_pods, lambda found: found.refused),
        unreached=_derive(gpu_pods, lambda found: found.unreached),
        waiting=_derive(gpu_pods, lambda found: found.waiting),
        **found,
    )


# --- requests ---------------------------------------------------------------------------


def _version(client: Client) -> OrUnread[str]:
    """Read the version first: every user may, and if it fails, all other requests would too."""
    try:
        return str(client.call("GET", "/version", timeout=_SECONDS)["gitVersion"])
    except (Rejected, Gone) as error:
        return UnreadSource(str(error))
    except KeyError as error:
        return _unexpected(error)


def _maybe(read: Callable[[], OrUnread[T]]) -> OrUnread[T]:
    try:
        return read()
    except (Rejected, Gone, Unavailable) as error:
        return UnreadSource(str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> UnreadSource:
    return UnreadSource(f"unexpected response of the API server: {error!r}")


def _derive(part: OrUnread[T], make: Callable[[T], OrUnread[R]]) -> OrUnread[R]:
    return part if isinstance(part, UnreadSource) else _maybe(partial(make, part))


def _all(client: Client, path: str, query: Mapping[str, str] | None = None) -> Iterator[Json]:
    for page, _ in pages(client, path, query or {}):
        yield from page


def _metrics(
    client: Client, pool: Executor, pods: Sequence[Json], only: str | None
) -> Mapping[str, Mapping[str, OrUnread[Samples]]]:
    """Read the metrics of our programs: by node on GPU nodes, else by pod."""
    targets: list[tuple[str, str, Json]] = []
    for pod in sorted(pods, key=_is_ready, reverse=True):
        component, node = _label(pod, _NAME_LABEL), pod["spec"].get("nodeName") or ""
        on_node = component in (AGENT, PROXY)
        if component in _FACT_OF_PROGRAM and node and not (on_node and only not in (None, node)):
            targets.append(
                (_FACT_OF_PROGRAM[component], node if on_node else pod["metadata"]["name"], pod)
            )
    reads = [partial(_read_metrics, client, pod) for _, _, pod in targets]
    found: dict[str, dict[str, OrUnread[Samples]]] = {
        part: {} for part in _FACT_OF_PROGRAM.values()
    }
    for (part, key, _), samples in zip(targets, pool.map(_maybe, reads), strict=True):
        # Of two pods on a node one is stopping, or cannot start: keep the metrics that could be
        # read, first those of a pod that is ready.
        if isinstance(found[part].get(key, UnreadSource("")), UnreadSource):
            found[part][key] = samples
    return found


def _read_metrics(client: Client, pod: Json) -> Samples:
    if not (pod.get("status") or {}).get("podIP"):
        raise Unavailable("it has no IP address yet")
    return read_metrics(client, pod["metadata"]["namespace"], pod, prefix=_PREFIX)


# --- our programs -----------------------------------------------------------------------


def _own_pods(client: Client) -> list[Json]:
    return [
        pod
        for namespace in (NAMESPACE, AGENT_NAMESPACE)
        for pod in _all(client, object_path("pods", namespace))
        if _label(pod, _NAME_LABEL).startswith("gpu-turnstile-")
    ]


def _programs(client: Client, pods: Sequence[Json]) -> Sequence[ProgramPod]:
    """Read our pods, and for those that are being created their newest warnings."""
    starting = {
        pod["metadata"]["namespace"]
        for pod in pods
        if any(
            ((each.get("state") or {}).get("waiting") or {}).get("reason") in _BEFORE_START
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        )
    }
    newest: dict[str, str] = {}
    for namespace in sorted(starting):
        path = object_path("events", namespace)
        listed = _maybe(partial(_warnings, client, path))
        newest |= {} if isinstance(listed, UnreadSource) else listed
    return [_program(each, newest.get(each["metadata"].get("uid", ""), "")) for each in pods]


def _warnings(client: Client, path: str) -> Mapping[str, str]:
    """Read the newest warning about each pod: its message, by the pod's UID."""
    events = [
        each
        for each in _all(client, path, {"fieldSelector": "involvedObject.kind=Pod,type=Warning"})
        if each.get("message")
    ]
    events.sort(key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")
    return {each["involvedObject"].get("uid", ""): each["message"] for each in events}


def _program(pod: Json, event: str) -> ProgramPod:
    """Read a pod of ours; *event* is the message of its newest warning."""
    status, ready = pod.get("status") or {}, _is_ready(pod)
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    last = conditions.get("Ready") or {}
    return ProgramPod(
        component=_label(pod, _NAME_LABEL),
        name=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName") or _target_node(pod["spec"]),
        bound=bool(pod["spec"].get("nodeName")),
        image=pod["spec"]["containers"][0].get("image") or "",
        ready=ready,
        why="" if ready else _not_ready_reason(status, conditions, event),
        created=_time(pod["metadata"].get("creationTimestamp")),
        ending=bool(pod["metadata"].get("deletionTimestamp")),
        since=_time(last.get("lastTransitionTime")) if ready else None,
    )


def _is_ready(pod: Json) -> bool:
    return any(
        (each["type"], each.get("status")) == ("Ready", "True")
        for each in (pod.get("status") or {}).get("conditions") or ()
    )


def _target_node(spec: Json) -> str:
    """Return the node for which a DaemonSet's pod is pending; empty for other pods."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["values"]:
                return str(each["values"][0])
    return ""


def _not_ready_reason(status: Json, conditions: Mapping[str, Json], event: str) -> str:
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        for state in ("waiting", "terminated"):
            current = (each.get("state") or {}).get(state)
            if current and not (state == "terminated" and current.get("exitCode") == 0):
                last = (each.get("lastState") or {}).get("terminated") or {}
                code = f", last exit code {last['exitCode']}" if "exitCode" in last else ""
                # After a crash the waiting state has the back-off; the last state has the reason.
                message = clamp((last or current).get("message"))
                # A container that is being created has no message: missing volumes are in Events.
                if not message and current.get("reason") in _BEFORE_START:
                    message = clamp(event)
                # Without container IDs equal messages of several nodes are one finding.
                message = _CONTAINER_ID.sub("...", message)
                text = f"{each['name']}: {current.get('reason') or state}{code}"
                return f"{text}: {message}" if message else text
    for kind in ("PodScheduled", "Ready"):
        condition = conditions.get(kind) or {}
        reason = condition.get("message") or condition.get("reason")
        if condition.get("status") != "True" and reason:
            return str(reason)
    return str(status.get("message") or status.get("phase") or "")


def _daemonsets(client: Client) -> Mapping[str, Json]:
    path = object_path("daemonsets", AGENT_NAMESPACE, api="/apis/apps/v1")
    return {each["metadata"]["name"]: each for each in _all(client, path)}


def _counts(daemonsets: Mapping[str, Json]) -> Mapping[str, DaemonSet]:
    fields = (
        *("desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled"),
        "updatedNumberScheduled",
    )
    return {
        name: DaemonSet(*((each.get("status") or {}).get(field) or 0 for field in fields))
        for name, each in daemonsets.items()
    }


def _enforcement(daemonsets: Mapping[str, Json]) -> OrUnread[str]:
    if AGENT not in daemonsets:
        return UnreadSource(f"DaemonSet {AGENT}, which sets it, is missing")
    found = "none"
    for container in daemonsets[AGENT]["spec"]["template"]["spec"]["containers"]:
        for each in container.get("env") or ():
            if each["name"] == "GPU_TURNSTILE_ENFORCEMENT":
                found = str(each.get("value") or "none")
        # As click reads them: flags win, the last one counts.
        words = " ".join(
            map(str, (*(container.get("command") or ()), *(container.get("args") or ())))
        )
        found = (_ENFORCEMENT.findall(words) or [found])[-1]
    return found


def _leases(client: Client) -> Mapping[str, Lease]:
    found = {}
    for name in (EXTENDER, KUBE_SCHEDULER):
        path = object_path("leases", NAMESPACE, name, api="/apis/coordination.k8s.io/v1")
        lease = client.find(path, timeout=_SECONDS)
        if lease is not None:
            spec = lease["spec"]
            found[name] = Lease(
                spec.get("holderIdentity") or "",
                _time(spec.get("renewTime")),
                float(spec.get("leaseDurationSeconds") or 0),
            )
    return found


def _managed_objects(client: Client) -> Sequence[ManagedObject]:
    return [
        ManagedObject(
            kind,
            each["metadata"].get("namespace") or "",
            each["metadata"]["name"],
            _label(each, _COMPONENT_LABEL),
            _release(each),
        )
        for kind, path in _KINDS.items()
        for each in _all(client, path, {"labelSelector": PART_OF})
    ]


def _release(obj: Json) -> tuple[str, str] | None:
    """Return name and namespace of the Helm release of an object."""
    annotations = obj["metadata"].get("annotations") or {}
    name, namespace = (
        annotations.get(f"meta.helm.sh/release-{each}") for each in ("name", "namespace")
    )
    return (name, namespace) if name and namespace else None


def _proxy_starts(pods: Sequence[Json]) -> Mapping[str, datetime]:
    """Return when the newest container of a proxy started on each node."""
    starts: dict[str, datetime] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName") or ""
        for each in (pod.get("status") or {}).get("containerStatuses") or ():
            start = _time(((each.get("state") or {}).get("running") or {}).get("startedAt"))
            if _label(pod, _NAME_LABEL) == PROXY and start:
                starts[node] = max(start, starts.get(node, start))
    return starts


# --- GPU pods ---------------------------------------------------------------------------


class _GpuPods(NamedTuple):
    """What is read of all pods, in one list."""

    allocations: list[ReportedAllocation | UnrecordedContainer]
    refused: list[RefusedPod]
    unreached: list[str]
    waiting: dict[str, bool]


def _gpu_pods(client: Client, names: Names, node: str | None) -> _GpuPods:
    query = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    found = _GpuPods([], [], [], {})
    for pod in _all(client, "/api/v1/pods", query):
        phase = (pod.get("status") or {}).get("phase")
        if phase in ("Running", "Pending"):
            found.allocations.extend(_allocations_of(pod, names))
        if phase in ("Failed", "Pending") and (facts := read_pod_facts(pod, names)):
            at = _time(pod["status"].get("startTime"))  # the kubelet's status always has it
            if facts.report.stage is Stage.REFUSED and at:
                found.refused.append(RefusedPod(facts.report, at))
            elif facts.report.stage is Stage.PENDING:
                found.waiting[str(facts.info)] = bool(named_template(pod))
                if _UNREACHED.search(facts.unscheduled[1]):
                    found.unreached.append(facts.unscheduled[1])
    return found


def _allocations_of(pod: Json, names: Names) -> Iterator[ReportedAllocation | UnrecordedContainer]:
    """Yield the allocations of a pod; while it ends they may change any time."""
    info = read_gpu_pod(pod, names)
    if info is None or info.terminal or pod["metadata"].get("deletionTimestamp"):
        return
    # Also those that contradict the request: they differ from what the kubelet has.
    written = read_allocations(pod["metadata"].get("annotations") or {}, names, [])
    started = _time((pod.get("status") or {}).get("startTime"))
    for container in info.demand.containers:
        allocation = written.get(container.name)
        if container.kind is ContainerKind.INIT:
            continue  # its devices are reusable
        if allocation is not None:
            yield ReportedAllocation(
                info.id.namespace,
                info.id.name,
                container.name,
                info.node,
                frozenset(allocation.cards),
                allocation.cores,
                info.running,
            )
        elif info.running:
            yield UnrecordedContainer(str(info.id), container.name, info.node, started)


# --- admission --------------------------------------------------------------------------


def _webhooks(client: Client) -> Sequence[WebhookEntry] | None:
    path = f"{_ADMISSION}/mutatingwebhookconfigurations/gpu-turnstile"
    found = client.find(path, timeout=_SECONDS)
    if found is None:
        return None
    return [
        WebhookEntry(
            each["name"],
            each.get("failurePolicy") or "Fail",
            bool((each.get("clientConfig") or {}).get("caBundle")),
        )
        for each in found.get("webhooks") or ()
    ]


def _policies(client: Client) -> Mapping[str, bool]:
    bindings = _all(client, f"{_ADMISSION}/validatingadmissionpolicybindings")
    bound = {each["spec"]["policyName"] for each in bindings}
    listed = _all(client, f"{_ADMISSION}/validatingadmissionpolicies")
    names = [each["metadata"]["name"] for each in listed]
    return {name: name in bound for name in names if name.startswith("gpu-turnstile-")}


def _create_dry_run(client: Client, names: Names, namespace: str) -> DryRun:
    """Create a GPU pod as a dry run: the API server calls the webhook as for any other pod.

    Raises:
        Rejected: this user may not create pods in the namespace.
        Unavailable: no usable response, and not because of a failing webhook.
    """
    context: Json = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container: Json = {
        "name": "try",
        "image": "gpu-turnstile.invalid/never-pulled",
        "resources": {"limits": {names.core: "1", names.memory: "1"}},
        "securityContext": context,
    }
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpu-turnstile-doctor-"},
        "spec": {"containers": [container]},
    }
    path = object_path("pods", namespace)
    try:
        # The API server waits up to ten seconds for a webhook.
        created = client.call("POST", path, pod, timeout=15.0, query={"dryRun": "All"})
    except Rejected as error:
        if error.status == FORBIDDEN and "cannot create resource" in str(error):
            raise
        return DryRun(stamped=False, denied=str(error))
    except Unavailable as error:
        if "failed calling webhook" in str(error):
            return DryRun(stamped=False, denied=str(error))
        raise
    stamped = names.predicate_time in (created["metadata"].get("annotations") or {})
    spec = created.get("spec") or {}
    away = MODE_LABEL in str(spec.get("affinity"))  # the pod had no affinity
    return DryRun(stamped, claims="on" if named_template(created) else "away" if away else "off")


# --- Dynamic Resource Allocation --------------------------------------------------------


def _slices(client: Client, names: Names) -> Sequence[NodeSlice] | None:
    query = {"fieldSelector": f"spec.driver={driver_name(names)}"}
    try:
        return [_slice(each) for each in _all(client, f"{_DRA}/resourceslices", query)]
    except Rejected as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return None


def _slice(obj: Json) -> NodeSlice:
    spec = obj["spec"]
    pool = spec["pool"]
    return NodeSlice(
        obj["metadata"]["name"],
        spec.get("nodeName") or "",
        pool.get("generation") or 0,
        pool["resourceSliceCount"],
        {
            clamp(each["attributes"][UUID]["string"]): Amounts(
                *(
                    int(parse_quantity(each["capacity"][name]["value"]) or 0)
                    for name in (CORES, MEMORY)
                )
            )
            for each in spec.get("devices") or ()
        },
    )


def _has_device_class(client: Client, names: Names) -> bool:
    path = f"{_DRA}/deviceclasses/{quoted(driver_name(names))}"
    return client.find(path, timeout=_SECONDS) is not None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _label(obj: Json, label: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(label) or "")
