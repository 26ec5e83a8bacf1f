"""The facts that the checks use, as they were read of the cluster."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple, TypeAlias, TypeVar

from contract.inventory import Amounts
from contract.other_systems import DriverDevices
from view.model.node_facts import NodeFacts
from view.model.reports import PodReport
from view.model.usage import MetricSample

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnreadSource:
    """A fact that could not be read, and the reason."""

    why: str


OrUnread: TypeAlias = T | UnreadSource


class NotReadError(Exception):
    """A check needs a fact that could not be read; the message is the reason."""


def require(part: OrUnread[T]) -> T:
    """Return a fact.

    Raises:
        NotReadError: it could not be read.
    """
    if isinstance(part, UnreadSource):
        raise NotReadError(part.why)
    return part


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: Annotated[str, "name of the check."]
    level: Annotated[Level, "its severity."]
    text: Annotated[str, "a sentence."]
    run: Annotated[
        str,
        "the next command to run, perhaps with a page to read as its comment, or only the page; "
        "empty if nothing is to be done.",
    ] = ""
    nodes: Annotated[
        tuple[str, ...], "nodes that it is about, sorted; empty if it is about no node."
    ] = ()

    @property
    def name(self) -> str:
        """The name of the check."""
        return self.check


ok = partial(Finding, "", Level.OK)
warning = partial(Finding, "", Level.WARNING)
error = partial(Finding, "", Level.ERROR)
unknown = partial(Finding, "", Level.UNKNOWN)
"""Return a finding of a text, the next command and nodes; the check is set later."""


@dataclass(frozen=True, slots=True)
class DaemonSet:
    """Counts of a DaemonSet's controller, which considers labels, affinity and taints."""

    wanted: Annotated[int, "nodes that it selects."] = 0
    there: Annotated[int, "of these, nodes with a pod of it."] = 0
    misplaced: Annotated[int, "other nodes with a pod of it."] = 0
    updated: Annotated[int, "nodes with a pod of its current template."] = 0


@dataclass(frozen=True, slots=True)
class ProgramPod:
    """A pod of one of our programs."""

    component: Annotated[str, "its ``app.kubernetes.io/name``."]
    name: Annotated[str, "of the pod."]
    node: Annotated[str, "on which it runs or will run; empty if it has none yet."]
    image: Annotated[str, "of its first container."]
    ready: Annotated[bool, "whether it is ready."]
    why: Annotated[str, "why it is not ready, from its status; else empty."] = ""
    bound: Annotated[bool, "whether a scheduler has bound it."] = True
    since: Annotated[
        datetime | None, "when it became ready; ``None`` if it is not ready or the time is missing."
    ] = None
    created: Annotated[datetime | None, "when it was created; ``None`` if that is missing."] = None
    starting: Annotated[
        datetime | None,
        "since when it is not ready because it, or a container of it, has started; ``None`` if it "
        "is ready or a container fails.",
    ] = None
    due: Annotated[
        datetime | None, "when it ends at the latest; ``None`` if it is not being deleted."
    ] = None


@dataclass(frozen=True, slots=True)
class WebhookEntry:
    """One webhook of a configuration."""

    name: Annotated[str, "such as ``pods.gpu-turnstile.io``."]
    failure_policy: Annotated[str, "``Fail`` or ``Ignore``."]
    has_ca_bundle: Annotated[bool, "whether it has a ``caBundle``."]


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of the creation of a pod as a dry run."""

    stamped: Annotated[bool, "whether the webhook stamped it."]
    denied: Annotated[str, "the API server's message if the pod was denied; else empty."] = ""
    claims: Annotated[
        str, "what the webhook's ``--claims`` does with it: ``off``, ``away`` or ``on``."
    ] = "off"


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease that decides which replica of the scheduler extender binds."""

    holder: Annotated[str, "name of the leader; empty if there is none."]
    renewed: Annotated[datetime | None, "time of its last renewal."]
    seconds: Annotated[float, "for how long a renewal is valid."]


@dataclass(frozen=True, slots=True)
class ReportedAllocation:
    """Allocation of one container in the annotation of its pod; init containers have none here."""

    namespace: Annotated[str, "of the pod."]
    pod: Annotated[str, "its name."]
    container: Annotated[str, "its name."]
    node: Annotated[str, "on which the pod runs."]
    cards: Annotated[frozenset[str], "UUIDs."]
    cores: Annotated[int, "hundredths of a card, over all cards."]
    running: Annotated[bool, "whether its pod runs."] = True
    by_claim: Annotated[bool, "whether a claim gave it the cards."] = False


@dataclass(frozen=True, slots=True)
class UnrecordedContainer:
    """A container of a running pod that requests GPUs and has no recorded allocation."""

    pod: Annotated[str, "namespace and name of its pod."]
    container: Annotated[str, "its name."]
    node: Annotated[str, "on which the pod runs."]
    since: Annotated[datetime | None, "when its pod started; ``None`` if unknown."]


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod that its node refused."""

    pod: Annotated[PodReport, "as far as it follows from the pod object alone."]
    at: Annotated[datetime, "when the kubelet rejected it."]


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """A ResourceSlice of our driver."""

    node: Annotated[str, "whose cards it has; empty if it names none."]
    generation: Annotated[int, "of its pool: schedulers use the newest one only."]
    parts: Annotated[int, "number of slices that the pool has in this generation."]
    cards: Annotated[Mapping[str, Amounts], "its devices: what each card has, by UUID."]


@dataclass(frozen=True, slots=True)
class ManagedObject:
    """An object that carries our label ``app.kubernetes.io/part-of``."""

    kind: Annotated[str, "as in a manifest."]
    name: Annotated[str, "of the object."]
    component: Annotated[str, "its ``app.kubernetes.io/component``; empty if it has none."]
    release: Annotated[
        tuple[str, str] | None,
        "name and namespace of its Helm release; ``None`` if it belongs to none.",
    ] = None
    replicas: Annotated[
        int | None, "its ``spec.replicas``; ``None`` if its kind has none, or it is not set."
    ] = None


Samples: TypeAlias = Sequence[MetricSample]


class CardChecks(NamedTuple):
    """The AdmissionChecks of Kueue that the controller of this project answers.

    Attributes:
        names: their names.
        unchecked: ClusterQueues with our resources that name none of them.
    """

    names: Sequence[str]
    unchecked: Sequence[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """What one run of the doctor has read from the cluster."""

    now: Annotated[datetime, "time of the run."]
    domain: Annotated[str, "of resource and annotation names."]
    version: Annotated[OrUnread[str], "of the API server, such as ``v1.36.2``."]
    nodes: Annotated[OrUnread[Sequence[NodeFacts]], "all nodes."]
    programs: Annotated[OrUnread[Sequence[ProgramPod]], "pods of our programs that stay."]
    ending: Annotated[
        OrUnread[Sequence[ProgramPod]],
        "those that are being deleted or have ended: their controllers make others.",
    ]
    mutating: Annotated[
        OrUnread[Sequence[WebhookEntry] | None],
        "the webhooks of our MutatingWebhookConfiguration; ``None`` if it is missing.",
    ]
    policies: Annotated[
        OrUnread[Mapping[str, bool]],
        "our ValidatingAdmissionPolicies, and whether each has a binding.",
    ]
    dry_run: Annotated[OrUnread[DryRun], "result for a GPU pod."]
    leases: Annotated[
        OrUnread[Mapping[str, Lease]],
        "of the extender and of our kube-scheduler, by the name of the workload.",
    ]
    daemonsets: Annotated[OrUnread[Mapping[str, DaemonSet]], "in the agents' namespace, by name."]
    enforcement: Annotated[
        OrUnread[str], "as the agents' DaemonSet sets it; ``none`` if it sets nothing."
    ]
    allocations: Annotated[
        OrUnread[Sequence[ReportedAllocation | UnrecordedContainer]],
        "from the annotations of pods that have not ended.",
    ]
    bound: Annotated[
        OrUnread[Mapping[str, str]],
        "the node of each GPU pod that is bound and has neither ended nor been deleted, by "
        "namespace and name.",
    ]
    refused: Annotated[OrUnread[Sequence[RefusedPod]], "pods that their nodes refused."]
    unreached: Annotated[
        OrUnread[Sequence[str]],
        "for each pending pod whose scheduler's request to an extender failed, its message.",
    ]
    waiting: Annotated[
        OrUnread[Mapping[str, bool]],
        "for each GPU pod without a node, by namespace and name, whether it names a template of "
        "ours.",
    ]
    slices: Annotated[
        OrUnread[Sequence[NodeSlice] | None],
        "the ResourceSlices of our driver; ``None`` if ``resource.k8s.io/v1`` is not served.",
    ]
    other_devices: Annotated[
        OrUnread[Mapping[str, DriverDevices]], "devices of NVIDIA's DRA driver, by node."
    ]
    device_class: Annotated[OrUnread[bool], "whether our DeviceClass exists."]
    templates: Annotated[
        OrUnread[Sequence[str]], "for each ResourceClaimTemplate of ours, its namespace."
    ]
    queues: Annotated[
        OrUnread[Mapping[str, str] | None],
        "for each ClusterQueue of Kueue with our resources, for whom it evicts pods, empty if for "
        "nobody; ``None`` without Kueue.",
    ]
    card_checks: Annotated[
        OrUnread[CardChecks | None], "our AdmissionChecks of Kueue; ``None`` without Kueue."
    ]
    managed: Annotated[OrUnread[Sequence[ManagedObject]], "objects of our installation."]
    proxy_starts: Annotated[
        OrUnread[Mapping[str, datetime]], "when the newest proxy of each node started, by node."
    ]
    agents: Annotated[Mapping[str, OrUnread[Samples]], "metrics of agents, by node."]
    proxies: Annotated[Mapping[str, OrUnread[Samples]], "metrics of proxies, by node."]
    webhooks: Annotated[Mapping[str, OrUnread[Samples]], "metrics of webhook replicas, by pod."]
    extenders: Annotated[Mapping[str, OrUnread[Samples]], "metrics of extender replicas, by pod."]

    def find_missing(self, names: Iterable[str]) -> set[str]:
        """Return the names that no node has; none if nodes could not be read."""
        if isinstance(self.nodes, UnreadSource):
            return set()
        return {*filter(None, names)} - {each.node.name for each in self.nodes}

    @property
    def by_helm(self) -> bool:
        """Whether Helm installed it."""
        return bool(self._releases)

    @property
    def install(self) -> str:
        """The command that restores the installation: Helm's if Helm installed it.

        With several releases, that of the most objects.
        """
        releases = self._releases
        if not releases:
            return "kubectl apply -k YOUR-KUSTOMIZATION"
        ((name, namespace), _), *_ = releases.most_common(1)
        return f"helm upgrade {name} YOUR-CHART --namespace {namespace} --reuse-values"

    @property
    def _releases(self) -> Counter[tuple[str, str]]:
        owned = [] if isinstance(self.managed, UnreadSource) else self.managed
        return Counter(each.release for each in owned if each.release)


AGENT = "gpu-turnstile-agent"
PROXY = "gpu-turnstile-proxy"
WEBHOOK = "gpu-turnstile-webhook"
EXTENDER = "gpu-turnstile-scheduler"
KUBE_SCHEDULER = "gpu-turnstile-kube-scheduler"
CLAIMS = "gpu-turnstile-claims"
"""Label ``app.kubernetes.io/name`` of our programs' pods."""


def read_samples(replicas: Mapping[str, OrUnread[Samples]]) -> dict[str, Samples]:
    """Return the metrics of the replicas whose metrics could be read."""
    return {
        name: samples for name, samples in replicas.items() if not isinstance(samples, UnreadSource)
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Sum up the samples of a metric that have these labels; ``None`` if there are none."""
    found = [
        each.value
        for each in samples
        if each.name == name and labels.items() <= dict(each.labels).items()
    ]
    return sum(found) if found else None
