"""What the checks look at, as it was read of the cluster."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeAlias, TypeVar

from view.model.nodes import NodeFacts
from view.model.usage import MetricSample

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnreadSource:
    """Something that could not be read, and why, in words."""

    why: str


Maybe: TypeAlias = T | UnreadSource


class NotReadError(Exception):
    """A check needs what could not be read; the message says why it could not."""


def known(part: Maybe[T]) -> T:
    """Return what was read.

    Raises:
        NotReadError: it was not.
    """
    if isinstance(part, UnreadSource):
        raise NotReadError(part.why)
    return part


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says."""

    check: Annotated[str, "its name."]
    level: Annotated[Level, "how bad it is."]
    text: Annotated[str, "a sentence."]
    run: Annotated[
        str,
        "the next command, or a page of the documentation; empty where nothing is to be done.",
    ] = ""
    nodes: Annotated[
        tuple[str, ...], "those it is about, sorted; none where it is about no node."
    ] = ()

    @property
    def name(self) -> str:
        """The name of the check."""
        return self.check


def ok(text: str) -> Finding:
    """Say that nothing is wrong."""
    return Finding("", Level.OK, text)


def warning(text: str, run: str = "") -> Finding:
    """Say what should be looked at."""
    return Finding("", Level.WARNING, text, run)


def error(text: str, run: str = "") -> Finding:
    """Say what is wrong."""
    return Finding("", Level.ERROR, text, run)


def unknown(text: str, run: str = "") -> Finding:
    """Say what cannot be told."""
    return Finding("", Level.UNKNOWN, text, run)


@dataclass(frozen=True, slots=True)
class DaemonSet:
    """What the controller of a DaemonSet counts; it knows labels, affinity and taints."""

    wanted: Annotated[int, "nodes that it chooses."] = 0
    there: Annotated[int, "of these, nodes with a pod of it."] = 0
    misplaced: Annotated[int, "other nodes with a pod of it."] = 0


@dataclass(frozen=True, slots=True)
class ProgramPod:
    """A pod of ours."""

    component: Annotated[str, "its ``app.kubernetes.io/name``."]
    name: Annotated[str, "of the pod."]
    node: Annotated[str, "where it runs, or is to run; empty where it has no place yet."]
    image: Annotated[str, "of its first container."]
    ready: Annotated[bool, "whether it is ready."]
    why: Annotated[str, "why it is not, as its status says; empty while it is."] = ""
    bound: Annotated[bool, "whether a scheduler has bound it."] = True
    since: Annotated[
        datetime | None, "when it became ready; ``None`` while it is not, or where it does not say."
    ] = None


@dataclass(frozen=True, slots=True)
class WebhookEntry:
    """One webhook of a configuration."""

    name: Annotated[str, "such as ``pods.gpu-turnstile.io``."]
    failure_policy: Annotated[str, "``Fail`` or ``Ignore``."]
    trusts: Annotated[bool, "whether it has a ``caBundle``."]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What became of a pod that was created as a dry run."""

    stamped: Annotated[bool, "whether it came back with the webhook's stamps."]
    refused: Annotated[str, "the API server's words where it said no; empty where it did not."] = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads the scheduler extender."""

    holder: Annotated[str, "its name; empty where nobody does."]
    renewed: Annotated[datetime | None, "when it last said so."]
    seconds: Annotated[float, "for how long that holds."]


@dataclass(frozen=True, slots=True)
class ReportedAllocation:
    """What the annotation of a pod says that a container got."""

    namespace: Annotated[str, "of the pod."]
    pod: Annotated[str, "its name."]
    container: Annotated[str, "its name."]
    node: Annotated[str, "where the pod runs."]
    cards: Annotated[frozenset[str], "UUIDs."]
    cores: Annotated[int, "hundredths of a card, over all cards."]


@dataclass(frozen=True, slots=True)
class ManagedObject:
    """An object that carries our label ``app.kubernetes.io/part-of``."""

    kind: Annotated[str, "as in a manifest."]
    namespace: Annotated[str, "empty for what has none."]
    name: Annotated[str, "of the object."]
    component: Annotated[str, "its ``app.kubernetes.io/component``; empty where it has none."]
    release: Annotated[
        tuple[str, str] | None,
        "name and namespace of the Helm release that it belongs to; none for other objects.",
    ] = None


Samples: TypeAlias = Sequence[MetricSample]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read."""

    now: Annotated[datetime, "when."]
    domain: Annotated[str, "of resource and annotation names."]
    version: Annotated[Maybe[str], "of the API server, such as ``v1.36.2``."]
    nodes: Annotated[Maybe[Sequence[NodeFacts]], "all of them."]
    programs: Annotated[Maybe[Sequence[ProgramPod]], "all pods of ours."]
    mutating: Annotated[
        Maybe[Sequence[WebhookEntry] | None],
        "the hooks of the MutatingWebhookConfiguration; ``None`` where there is none.",
    ]
    policies: Annotated[
        Maybe[Mapping[str, bool]],
        "names of our ValidatingAdmissionPolicies, and whether each is bound.",
    ]
    trial: Annotated[Maybe[DryRun], "of the pod that was created as a dry run."]
    lease: Annotated[Maybe[Lease | None], "the extender's; ``None`` where there is none."]
    daemonsets: Annotated[
        Maybe[Mapping[str, DaemonSet]], "those in the agents' namespace, by name."
    ]
    enforcement: Annotated[
        Maybe[str], "what the agents' DaemonSet sets; ``none`` where it sets nothing."
    ]
    held: Annotated[
        Maybe[Sequence[ReportedAllocation]], "what the annotations of running pods say."
    ]
    owned: Annotated[Maybe[Sequence[ManagedObject]], "our objects."]
    agents: Annotated[Mapping[str, Maybe[Samples]], "metrics of agents, by node."]
    proxies: Annotated[Mapping[str, Maybe[Samples]], "metrics of proxies, by node."]
    webhooks: Annotated[Mapping[str, Maybe[Samples]], "metrics of webhook replicas, by pod."]
    extenders: Annotated[Mapping[str, Maybe[Samples]], "metrics of the extender's, by pod."]

    @property
    def install(self) -> str:
        """The command that puts back what was installed: Helm's, where Helm installed it.

        Of several releases the one that most objects belong to.
        """
        owned = [] if isinstance(self.owned, UnreadSource) else self.owned
        releases = Counter(each.release for each in owned if each.release)
        if not releases:
            return "kubectl apply -k YOUR-KUSTOMIZATION"
        ((name, namespace), _), *_ = releases.most_common(1)
        return f"helm upgrade {name} YOUR-CHART --namespace {namespace} --reuse-values"


AGENT = "gpu-turnstile-agent"
PROXY = "gpu-turnstile-proxy"
WEBHOOK = "gpu-turnstile-webhook"
EXTENDER = "gpu-turnstile-scheduler"
KUBE_SCHEDULER = "gpu-turnstile-kube-scheduler"
"""``app.kubernetes.io/name`` of our programs' pods."""


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the sum of a metric's samples that have these labels; ``None`` where there is none."""
    found = [
        each.value
        for each in samples
        if each.name == name and labels.items() <= dict(each.labels).items()
    ]
    return sum(found) if found else None
