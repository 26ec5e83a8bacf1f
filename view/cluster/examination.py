"""What ``kubectl gpu doctor`` looks at, read side by side; whatever cannot be read is told."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from common.apiserver.client import Client, Json, object_path, quoted
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from contract.allocation import decode_allocations
from contract.cordon import read_cordon
from contract.errors import ContractError
from contract.inventory import decode_inventory
from contract.names import Names
from view.cluster.agents import AGENT_NAMESPACE, parse_samples
from view.model.constraints import NodeTraits, read_constraints, read_traits
from view.model.doctor.facts import (
    AGENT,
    EXTENDER,
    PROXY,
    WEBHOOK,
    Facts,
    Held,
    Hook,
    Lease,
    Maybe,
    NodeState,
    Owned,
    Program,
    Samples,
    Trial,
    Unread,
)
from view.model.nodes import GPU_LABELS
from view.model.words import clamp

NAMESPACE = "gpu-turnstile"
PART_OF = "app.kubernetes.io/part-of=gpu-turnstile"
_NAME_LABEL = "app.kubernetes.io/name"
_COMPONENT_LABEL = "app.kubernetes.io/component"
_PREFIX = "gpu_turnstile_"
_SECONDS = 5.0
_AT_ONCE = 32
_PAGE = "500"
_FORBIDDEN = 403
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
"""Kinds of which something may be left over. Secrets are not read: they have keys in them."""

T = TypeVar("T")


def examine(client: Client, names: Names, namespace: str, node: str | None = None) -> Facts:
    """Read everything that the checks look at.

    Args:
        client: of the API server.
        names: the contract's names.
        namespace: where a pod is created as a dry run.
        node: the only one whose programs are asked; ``None`` for all.

    Returns:
        What was read; each part that could not be is :class:`Unread`, with the API server's words.

    Raises:
        Unavailable: the API server does not answer at all.
    """
    version = _version(client)
    with ThreadPoolExecutor(_AT_ONCE) as pool:

        def begin(read: Callable[[], T]) -> "Future[Maybe[T]]":
            return pool.submit(_maybe, read)

        pods = begin(lambda: _own_pods(client))
        daemonsets = begin(lambda: _daemonsets(client))
        nodes = begin(lambda: _nodes(client, names, daemonsets.result()))
        mutating = begin(lambda: _hooks(client))
        policies = begin(lambda: _policies(client))
        trial = begin(lambda: _try_pod(client, names, namespace))
        lease = begin(lambda: _lease(client))
        held = begin(lambda: _held(client, names, node))
        owned = begin(lambda: _owned(client))

        found = pods.result()
        asked: list[tuple[str, str, Future[Maybe[Samples]]]] = []
        for each in () if isinstance(found, Unread) else found:
            component = _label(each, _NAME_LABEL)
            where = each["spec"].get("nodeName") or ""
            on_node = component in (AGENT, PROXY)
            if component not in (AGENT, PROXY, WEBHOOK, EXTENDER) or not where:
                continue
            if on_node and node not in (None, where):
                continue
            key = where if on_node else each["metadata"]["name"]
            asked.append((component, key, begin(partial(_metrics, client, each))))
        metrics: dict[str, dict[str, Maybe[Samples]]] = {}
        for component, key, answer in asked:
            of = metrics.setdefault(component, {})
            if key not in of or isinstance(of[key], Unread):  # of two, one is ending
                of[key] = answer.result()
        return Facts(
            now=datetime.now(UTC),
            domain=names.domain,
            version=version,
            nodes=nodes.result(),
            programs=found if isinstance(found, Unread) else [_program(each) for each in found],
            mutating=mutating.result(),
            policies=policies.result(),
            trial=trial.result(),
            lease=lease.result(),
            daemonsets=_daemonset_names(daemonsets.result()),
            enforcement=_enforcement(daemonsets.result()),
            held=held.result(),
            owned=owned.result(),
            agents=metrics.get(AGENT, {}),
            proxies=metrics.get(PROXY, {}),
            webhooks=metrics.get(WEBHOOK, {}),
            extenders=metrics.get(EXTENDER, {}),
        )


def _version(client: Client) -> Maybe[str]:
    """Ask first what every server answers: where none does, nothing else is worth asking."""
    try:
        return str(client.call("GET", "/version", timeout=_SECONDS)["gitVersion"])
    except (Rejected, Gone) as error:
        return Unread(str(error))
    except KeyError as error:
        return _other_answer(error)


def _other_answer(error: Exception) -> Unread:
    return Unread(f"the API server answered with something else: {error!r}")


def _maybe(read: Callable[[], T]) -> Maybe[T]:
    try:
        return read()
    except (Rejected, Gone, Unavailable) as error:
        return Unread(str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _other_answer(error)


def _all(client: Client, path: str, query: Mapping[str, str] | None = None) -> Iterable[Json]:
    more = ""
    while True:
        page = {**(query or {}), "limit": _PAGE, **({"continue": more} if more else {})}
        objects, _, more = client.list(path, page)
        yield from objects
        if not more:
            return


def _own_pods(client: Client) -> list[Json]:
    found: list[Json] = []
    for namespace in (NAMESPACE, AGENT_NAMESPACE):
        found += _all(client, object_path("pods", namespace))
    return [each for each in found if _label(each, _NAME_LABEL).startswith("gpu-turnstile-")]


def _program(pod: Json) -> Program:
    status = pod.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    last = conditions.get("Ready") or {}
    ready = last.get("status") == "True"
    return Program(
        component=_label(pod, _NAME_LABEL),
        namespace=pod["metadata"]["namespace"],
        name=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName") or _wanted(pod["spec"]),
        bound=bool(pod["spec"].get("nodeName")),
        image=pod["spec"]["containers"][0].get("image") or "",
        ready=ready,
        why="" if ready else _why(status, conditions),
        since=_time(last.get("lastTransitionTime")) if ready else None,
    )


def _wanted(spec: Json) -> str:
    """Name the node that a DaemonSet's pod waits for; empty for other pods."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["values"]:
                return str(each["values"][0])
    return ""


def _why(status: Json, conditions: Mapping[str, Json]) -> str:
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        for state in ("waiting", "terminated"):
            told = (each.get("state") or {}).get(state)
            if told and not (state == "terminated" and told.get("exitCode") == 0):
                last = (each.get("lastState") or {}).get("terminated") or {}
                code = f", last exit code {last['exitCode']}" if "exitCode" in last else ""
                # What waits after a crash says for how long; how it crashed is in the last state.
                words = clamp((last or told).get("message"))
                words = _CONTAINER_ID.sub("...", words)  # the same on all nodes is one finding
                said = f"{each['name']}: {told.get('reason') or state}{code}"
                return f"{said}: {words}" if words else said
    for kind in ("PodScheduled", "Ready"):
        told = conditions.get(kind) or {}
        if told.get("status") != "True" and (told.get("message") or told.get("reason")):
            return str(told.get("message") or told.get("reason"))
    return str(status.get("message") or status.get("phase") or "")


def _daemonsets(client: Client) -> Mapping[str, Json]:
    """Read the DaemonSets beside the agents': what pods each of them makes, by its name."""
    api = "/apis/apps/v1"
    found = _all(client, object_path("daemonsets", AGENT_NAMESPACE, api=api))
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in found}


def _daemonset_names(daemonsets: Maybe[Mapping[str, Json]]) -> Maybe[frozenset[str]]:
    return daemonsets if isinstance(daemonsets, Unread) else frozenset(daemonsets)


def _nodes(
    client: Client, names: Names, daemonsets: Maybe[Mapping[str, Json]]
) -> Sequence[NodeState]:
    pods = {} if isinstance(daemonsets, Unread) else daemonsets
    return [_node(each, names, pods) for each in _all(client, "/api/v1/nodes")]


def _chosen(node: NodeTraits, pods: Mapping[str, Json]) -> frozenset[str]:
    """Name the DaemonSets that choose a node; one that is not there as that of deploy/base."""
    labelled = any((each, "true") in node.labels for each in GPU_LABELS)
    return frozenset(
        each
        for each in (AGENT, PROXY)
        if (_chooses(pods[each], node) if each in pods else labelled)
    )


def _chooses(pod: Json, node: NodeTraits) -> bool:
    """Tell whether pods of this template may run on a node; taints are not looked at."""
    wanted = read_constraints(pod)
    return not wanted.lacking(node) and wanted.affinity_matches(node)


def _node(obj: Json, names: Names, pods: Mapping[str, Json]) -> NodeState:
    metadata, status = obj["metadata"], obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    cards, problem = None, ""
    if names.gpu_cards in annotations:
        try:
            cards = decode_inventory(annotations[names.gpu_cards])
        except ContractError as error:
            problem = str(error)
    allocatable: dict[str, int] = {}
    for name, amount in (status.get("allocatable") or {}).items():
        with suppress(ValueError):
            allocatable[name] = int(amount)
    return NodeState(
        name=metadata["name"],
        chosen=_chosen(read_traits(obj), pods),
        allocatable=allocatable,
        cards=cards,
        cards_problem=problem,
        cordoned=frozenset(read_cordon(annotations, names)),
    )


def _hooks(client: Client) -> Sequence[Hook] | None:
    api = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-turnstile"
    found = client.find(api, timeout=_SECONDS)
    if found is None:
        return None
    return [
        Hook(
            each["name"],
            each.get("failurePolicy") or "Fail",
            bool((each.get("clientConfig") or {}).get("caBundle")),
        )
        for each in found.get("webhooks") or ()
    ]


def _policies(client: Client) -> Mapping[str, bool]:
    api = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    bound = {each["spec"]["policyName"] for each in _all(client, f"{api}ybindings")}
    listed = [each["metadata"]["name"] for each in _all(client, f"{api}ies")]
    return {name: name in bound for name in listed if name.startswith("gpu-turnstile-")}


def _try_pod(client: Client, names: Names, namespace: str) -> Trial:
    """Create a GPU pod as a dry run: the API server calls the webhook as for any other.

    Raises:
        Rejected: this user may not create pods there.
        Unavailable: no usable answer, and none of a webhook's failure either.
    """
    limits = {names.core: "1", names.memory: "1"}
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
        "resources": {"limits": limits},
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
        # A webhook that does not answer is given up by the API server after ten seconds.
        made = client.call("POST", path, pod, timeout=15.0, query={"dryRun": "All"})
    except Rejected as error:
        if error.status == _FORBIDDEN and "cannot create resource" in str(error):
            raise
        return Trial(stamped=False, refused=str(error))
    except Unavailable as error:
        if "failed calling webhook" in str(error):
            return Trial(stamped=False, refused=str(error))
        raise
    return Trial(stamped=names.predicate_time in (made["metadata"].get("annotations") or {}))


def _lease(client: Client) -> Lease | None:
    api = "/apis/coordination.k8s.io/v1"
    path = object_path("leases", NAMESPACE, EXTENDER, api=api)
    found = client.find(path, timeout=_SECONDS)
    if found is None:
        return None
    spec = found["spec"]
    return Lease(
        spec.get("holderIdentity") or "",
        _time(spec.get("renewTime")),
        float(spec.get("leaseDurationSeconds") or 0),
    )


def _enforcement(daemonsets: Maybe[Mapping[str, Json]]) -> Maybe[str]:
    if isinstance(daemonsets, Unread):
        return daemonsets
    if AGENT not in daemonsets:
        return Unread(f"there is no DaemonSet {AGENT}, which says it")
    for container in daemonsets[AGENT]["containers"]:
        for each in container.get("env") or ():
            if each["name"] == "GPU_TURNSTILE_ENFORCEMENT":
                return str(each.get("value") or "none")
    return "none"


def _held(client: Client, names: Names, node: str | None) -> Sequence[Held]:
    query = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    found = []
    for pod in _all(client, "/api/v1/pods", query):
        metadata, spec = pod["metadata"], pod["spec"]
        text = (metadata.get("annotations") or {}).get(names.gpu_allocation)
        phase = (pod.get("status") or {}).get("phase")
        # What a pod holds that is beginning or ending changes between two readings.
        if not text or phase != "Running" or metadata.get("deletionTimestamp"):
            continue
        long_lived = {each["name"] for each in spec["containers"]}
        try:
            allocations = decode_allocations(text)
        except ContractError:
            continue
        found += [
            Held(
                metadata["namespace"],
                metadata["name"],
                container,
                spec.get("nodeName") or "",
                frozenset(each.cards),
                each.cores,
            )
            for container, each in allocations.items()
            if container in long_lived
        ]
    return found


def _owned(client: Client) -> Sequence[Owned]:
    query = {"labelSelector": PART_OF}
    return [
        Owned(
            kind,
            each["metadata"].get("namespace") or "",
            each["metadata"]["name"],
            _label(each, _COMPONENT_LABEL),
            _release(each),
        )
        for kind, path in _KINDS.items()
        for each in _all(client, path, query)
    ]


def _metrics(client: Client, pod: Json) -> Samples:
    metadata = pod["metadata"]
    if not (pod.get("status") or {}).get("podIP"):
        raise Unavailable("it has no address yet")
    port, scheme = 0, ""
    for container in pod["spec"]["containers"]:
        for each in container.get("ports") or ():
            if each.get("name") in ("http", "https"):
                port, scheme = each["containerPort"], "https:" if each["name"] == "https" else ""
    target = quoted(f"{scheme}{metadata['name']}:{port}")
    path = f"/api/v1/namespaces/{quoted(metadata['namespace'])}/pods/{target}/proxy/metrics"
    return parse_samples(client.read_text(path, timeout=_SECONDS), prefix=_PREFIX)


def _release(obj: Json) -> tuple[str, str] | None:
    """Name the Helm release that made an object, and its namespace."""
    notes = obj["metadata"].get("annotations") or {}
    name, namespace = (notes.get(f"meta.helm.sh/release-{each}") for each in ("name", "namespace"))
    return (name, namespace) if name and namespace else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _label(obj: Json, label: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(label) or "")
