"""Reads the facts for ``kubectl gpu doctor``, in parallel; what cannot be read is marked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from itertools import filterfalse
from operator import attrgetter
from typing import Any, TypeVar

from common.apiserver.client import Client, Json, list_slices, object_path, pages, quoted
from common.apiserver.errors import REQUEST_ERRORS, Gone, Rejected
from common.errors import Unavailable
from contract.claims import MODE_LABEL, SHAPE_LABEL, driver_name, named_template
from contract.devices import CORES, MEMORY, UUID
from contract.inventory import Amounts
from contract.names import Names
from contract.other_systems import NVIDIA_DRIVER, DriverDevices, count_devices
from contract.quantity import parse_quantity
from placement.cluster.workloads import CONTROLLER
from view.cluster.agents import AGENT_NAMESPACE, read_metrics, read_page
from view.cluster.collections import FORBIDDEN
from view.model.doctor.facts import (
    AGENT,
    EXTENDER,
    KUBE_SCHEDULER,
    PROXY,
    WEBHOOK,
    CardChecks,
    DryRun,
    Facts,
    Lease,
    ManagedObject,
    NodeSlice,
    OrUnread,
    ProgramPod,
    Samples,
    UnreadSource,
    WebhookEntry,
)
from view.model.doctor.objects import (
    GpuPods,
    component_of,
    is_ending,
    is_ready,
    is_starting,
    names_check,
    parse_time,
    read_daemonset,
    read_enforcement,
    read_gpu_pods,
    read_managed,
    read_program,
    read_proxy_starts,
    read_queue,
)
from view.model.event_facts import EventFacts
from view.model.node_facts import read_node
from view.model.words import clamp

NAMESPACE = "gpu-turnstile"
PART_OF = "app.kubernetes.io/part-of=gpu-turnstile"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_DRA = "/apis/resource.k8s.io/v1"
_KUEUE = "kueue.x-k8s.io"
_PREFIX = "gpu_turnstile_"
_FACT_OF_PROGRAM = {
    AGENT: "agents",
    PROXY: "proxies",
    WEBHOOK: "webhooks",
    EXTENDER: "extenders",
    KUBE_SCHEDULER: "extenders",
}
"""Programs whose metrics are read, and the fact that gets them."""

_SECONDS = 5.0
_AT_ONCE = 32
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
    """Read all facts; a pod is created in *namespace* as a dry run.

    If a *node* is given, only the metrics of its programs are read.

    Returns:
        The facts; one that could not be read is an :class:`UnreadSource` with the API server's
        message.

    Raises:
        Unavailable: the API server does not respond at all.
    """
    version = _version(client)
    on_node = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    parts: Mapping[str, Callable[[], Any]] = {
        "pods": lambda: _own_pods(client),
        "daemonsets": lambda: _daemonsets(client),
        "nodes": lambda: [read_node(each, names) for each in _all(client, "/api/v1/nodes")],
        "mutating": lambda: _webhooks(client),
        "policies": lambda: _policies(client),
        "dry_run": lambda: _create_dry_run(client, names, namespace),
        "leases": lambda: _leases(client),
        "gpu_pods": lambda: read_gpu_pods(_all(client, "/api/v1/pods", on_node), names),
        "managed": lambda: _managed_objects(client),
        "templates": lambda: _templates(client),
        "queues": lambda: _queues(client, names),
        "card_checks": lambda: _card_checks(client, names),
        "slices": lambda: _slices(client, names),
        "other_devices": lambda: _other_devices(client),
        "device_class": lambda: _has_device_class(client, names),
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool, client.interruptible():
        futures = {part: pool.submit(_maybe, read) for part, read in parts.items()}
        pods: OrUnread[Sequence[Json]] = futures.pop("pods").result()
        read = () if isinstance(pods, UnreadSource) else pods
        unready = _unready(client, pool, read, node)
        found: dict[str, Any] = {
            **_metrics(client, pool, read, node),
            **{part: future.result() for part, future in futures.items()},
        }
    daemonsets: OrUnread[Mapping[str, Json]] = found.pop("daemonsets")
    gpu_pods: OrUnread[GpuPods] = found.pop("gpu_pods")
    found |= {each: _derive(gpu_pods, attrgetter(each)) for each in GpuPods._fields}
    return Facts(
        now=datetime.now(UTC),
        domain=names.domain,
        version=version,
        programs=_derive(
            pods, lambda pods: _programs(client, [*filterfalse(is_ending, pods)], names, unready)
        ),
        ending=_derive(
            pods, lambda pods: [read_program(each, "") for each in filter(is_ending, pods)]
        ),
        daemonsets=_derive(
            daemonsets, lambda found: {name: read_daemonset(each) for name, each in found.items()}
        ),
        enforcement=_derive(daemonsets, read_enforcement),
        proxy_starts=_derive(pods, read_proxy_starts),
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
    except REQUEST_ERRORS as error:
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
    for pod in sorted(filterfalse(is_ending, pods), key=is_ready, reverse=True):
        component, node = component_of(pod), pod["spec"].get("nodeName") or ""
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
        # Of two pods on a node one is not ready yet: keep the metrics that could be read, first
        # those of a pod that is ready.
        if isinstance(found[part].get(key, UnreadSource("")), UnreadSource):
            found[part][key] = samples
    return found


def _unready(
    client: Client, pool: Executor, pods: Sequence[Json], only: str | None
) -> Mapping[str, str]:
    """Return what running pods that are not ready respond to a probe, by UID; else nothing."""
    asked = [
        each
        for each in filterfalse(is_ready, filterfalse(is_ending, pods))
        if (each.get("status") or {}).get("podIP") and only in (None, each["spec"].get("nodeName"))
    ]
    found = pool.map(partial(_read_problem, client), asked)
    return {pod["metadata"].get("uid", ""): text for pod, text in zip(asked, found, strict=True)}


def _read_problem(client: Client, pod: Json) -> str:
    try:
        read_page(client, pod["metadata"]["namespace"], pod, "readyz")
    except Unavailable as error:
        return str(error)
    except (Gone, Rejected):
        pass  # it may not be read: the pod's status has less
    return ""


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
        if component_of(pod).startswith("gpu-turnstile-")
    ]


def _programs(
    client: Client, pods: Sequence[Json], names: Names, unready: Mapping[str, str]
) -> Sequence[ProgramPod]:
    """Read our pods, and for those that are being created their newest warnings.

    *unready* has what those that run respond to a probe.
    """
    events = EventFacts(names)
    for namespace in sorted({each["metadata"]["namespace"] for each in pods if is_starting(each)}):
        _maybe(partial(_put_warnings, client, namespace, events))
    found = []
    for pod in pods:
        uid = pod["metadata"].get("uid", "")
        warning = next((each.message for each in events.of(uid) if each.message), "")
        found.append(read_program(pod, warning, unready.get(uid, "")))
    return found


def _put_warnings(client: Client, namespace: str, events: EventFacts) -> None:
    query = {"fieldSelector": "involvedObject.kind=Pod,type=Warning"}
    for each in _all(client, object_path("events", namespace), query):
        events.put(each)


def _daemonsets(client: Client) -> Mapping[str, Json]:
    path = object_path("daemonsets", AGENT_NAMESPACE, api="/apis/apps/v1")
    return {each["metadata"]["name"]: each for each in _all(client, path)}


def _leases(client: Client) -> Mapping[str, Lease]:
    found = {}
    for name in (EXTENDER, KUBE_SCHEDULER):
        path = object_path("leases", NAMESPACE, name, api="/apis/coordination.k8s.io/v1")
        lease = client.find(path, timeout=_SECONDS)
        if lease is not None:
            spec = lease["spec"]
            found[name] = Lease(
                spec.get("holderIdentity") or "",
                parse_time(spec.get("renewTime")),
                float(spec.get("leaseDurationSeconds") or 0),
            )
    return found


def _managed_objects(client: Client) -> Sequence[ManagedObject]:
    return [
        read_managed(kind, each)
        for kind, path in _KINDS.items()
        for each in _all(client, path, {"labelSelector": PART_OF})
    ]


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
    listed = _all(client, f"{_DRA}/resourceslices", query)
    return _if_served(client, _DRA, lambda: [_slice(each) for each in listed])


def _other_devices(client: Client) -> Mapping[str, DriverDevices]:
    query = {"fieldSelector": f"spec.driver={NVIDIA_DRIVER}"}
    found = _if_served(client, _DRA, lambda: list_slices(client, query), "v1beta1")
    return count_devices(found or ())


def _templates(client: Client) -> Sequence[str]:
    query = {"labelSelector": SHAPE_LABEL}
    listed = _all(client, f"{_DRA}/resourceclaimtemplates", query)
    return (
        _if_served(client, _DRA, lambda: [each["metadata"]["namespace"] for each in listed]) or []
    )


def _slice(obj: Json) -> NodeSlice:
    spec = obj["spec"]
    pool = spec["pool"]
    return NodeSlice(
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
    return _if_served(client, _DRA, lambda: client.find(path, timeout=_SECONDS)) is not None


# --- what not every cluster has ---------------------------------------------------------


def _if_served(client: Client, api: str, read: Callable[[], T], *others: str) -> T | None:
    """Read objects of an API such as ``/apis/resource.k8s.io/v1``; ``None`` if it is not served.

    *others* are further versions that *read* tries.

    Without the right to read them a user is forbidden to even then; but every user may read which
    APIs are served.
    """
    try:
        return read()
    except Rejected as error:
        _, _, group, version = api.split("/")
        served = {version, *others}.intersection
        unserved = error.status == FORBIDDEN and not served(_versions(client, group))
        if error.status == HTTPStatus.NOT_FOUND or unserved:
            return None
        raise


def _versions(client: Client, group: str) -> Sequence[str]:
    """Return the served versions of an API group, the preferred one first; none without it."""
    found = client.find(f"/apis/{group}", timeout=_SECONDS)
    return [] if found is None else [each["version"] for each in found["versions"]]


def _queues(client: Client, names: Names) -> Mapping[str, str] | None:
    for version in _versions(client, _KUEUE)[:1]:
        queues = _all(client, f"/apis/{_KUEUE}/{version}/clusterqueues")
        return dict(filter(None, (read_queue(each, names) for each in queues)))
    return None


def _card_checks(client: Client, names: Names) -> CardChecks | None:
    for version in _versions(client, _KUEUE)[:1]:
        api = f"/apis/{_KUEUE}/{version}"
        ours = [
            each["metadata"]["name"]
            for each in _all(client, f"{api}/admissionchecks")
            if each["spec"].get("controllerName") == CONTROLLER
        ]
        unchecked = [
            each["metadata"]["name"]
            for each in _all(client, f"{api}/clusterqueues")
            if read_queue(each, names) is not None and not names_check(each, ours)
        ]
        return CardChecks(sorted(ours), sorted(unchecked))
    return None
