"""The served resources, and the parsing of request paths."""

from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One kind of object.

    Attributes:
        group: API group, empty for the core.
        version: the only served version.
        plural: the name in request paths, such as ``pods``.
        kind: the ``kind`` of its objects.
        namespaced: whether its objects are in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return the ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Return its name in error messages: ``pods``, ``deployments.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def list_kind(self) -> str:
        """Return the ``kind`` of its lists."""
        return f"{self.kind}List"


_ADMISSION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"

PODS = ApiResource("", "v1", "pods", "Pod")
NODES = ApiResource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", namespaced=False)
_KUEUE = "kueue.x-k8s.io", "v1beta2"
BUDGETS = ApiResource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
MUTATING_WEBHOOKS = ApiResource(
    _ADMISSION,
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = ApiResource(
    _ADMISSION,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
ALL = (
    PODS,
    NODES,
    NAMESPACES,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    ApiResource("", "v1", "configmaps", "ConfigMap"),
    ApiResource("", "v1", "events", "Event"),
    ApiResource("", "v1", "podtemplates", "PodTemplate"),
    ApiResource("", "v1", "replicationcontrollers", "ReplicationController"),
    ApiResource("", "v1", "secrets", "Secret"),
    ApiResource("", "v1", "serviceaccounts", "ServiceAccount"),
    ApiResource("", "v1", "services", "Service"),
    ApiResource("apps", "v1", "daemonsets", "DaemonSet"),
    ApiResource("apps", "v1", "deployments", "Deployment"),
    ApiResource("apps", "v1", "replicasets", "ReplicaSet"),
    ApiResource("apps", "v1", "statefulsets", "StatefulSet"),
    ApiResource("batch", "v1", "cronjobs", "CronJob"),
    ApiResource("batch", "v1", "jobs", "Job"),
    ApiResource("coordination.k8s.io", "v1", "leases", "Lease"),
    ApiResource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    ApiResource("events.k8s.io", "v1", "events", "Event"),
    ApiResource(*_KUEUE, "admissionchecks", "AdmissionCheck", namespaced=False),
    ApiResource(*_KUEUE, "clusterqueues", "ClusterQueue", namespaced=False),
    ApiResource(*_KUEUE, "localqueues", "LocalQueue"),
    ApiResource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup"),
    ApiResource(*_KUEUE, "resourceflavors", "ResourceFlavor", namespaced=False),
    ApiResource(*_KUEUE, "workloads", "Workload"),
    ApiResource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    BUDGETS,
    ApiResource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    ApiResource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    ApiResource(_RBAC, "v1", "rolebindings", "RoleBinding"),
    ApiResource(_RBAC, "v1", "roles", "Role"),
    ApiResource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
    ApiResource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
    ApiResource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    ApiResource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False),
    ApiResource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
)
_BY_PATH = {(each.group, each.version, each.plural): each for each in ALL}
_BY_KIND = {(each.api_version, each.kind): each for each in ALL}


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The resource, collection or object that a path names.

    Attributes:
        resource: the resource.
        namespace: empty for cluster-wide objects and for lists over all namespaces.
        name: empty for a collection.
        subresource: such as ``status`` or ``binding``, else empty.
    """

    resource: ApiResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def resource_of_kind(api_version: str, kind: str) -> ApiResource | None:
    """Find a resource by an object's ``apiVersion`` and ``kind``."""
    return _BY_KIND.get((api_version, kind))


def parse_path(path: str) -> RequestTarget | None:
    """Parse a request path; ``None`` if it names nothing that is served."""
    match path.strip("/").split("/"):
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    match rest:
        # ``namespaces/<name>`` is an object; with a third part, the namespace is a scope.
        case ["namespaces", namespace, plural, *tail] if plural not in ("status", "finalize"):
            scoped = True
        case [plural, *tail]:
            namespace, scoped = "", False
        case _:
            return None
    if tail[1:2] == ["proxy"]:  # the rest is the pod's own path, which is not simulated
        tail = tail[:2]
    resource = _BY_PATH.get((group, version, plural))
    if resource is None or len(tail) > 2 or not all([plural, *tail]):
        return None
    if resource.namespaced != scoped and (tail or scoped):
        return None
    name, subresource = (*tail, "", "")[:2]
    return RequestTarget(resource, namespace, name, subresource)
