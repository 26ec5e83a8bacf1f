"""What the checks look at, as it was read of the cluster."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeAlias, TypeVar

from view.model.nodes import NodeFacts
from view.model.usage import Sample

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read, and why, in words."""

    why: str


Maybe: TypeAlias = T | Unread


class NotReadError(Exception):
    """A check needs what could not be read; the message says why it could not."""


def known(part: Maybe[T]) -> T:
    """Return what was read.

    Raises:
        NotReadError: it was not.
    """
    if isinstance(part, Unread):
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
    """What the controller of a DaemonSet counts; it knows labels, affinity and taints.

    Attributes:
        wanted: nodes that it chooses.
        there: of these, nodes with a pod of it.
        misplaced: other nodes with a pod of it.
    """

    wanted: int = 0
    there: int = 0
    misplaced: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A pod of ours.

    Attributes:
        component: its ``app.kubernetes.io/name``.
        name: of the pod.
        node: where it runs, or is to run; empty where it has no place yet.
        image: of its first container.
        ready: whether it is ready.
        why: why it is not, as its status says; empty while it is.
        bound: whether a scheduler has bound it.
        since: when it became ready; ``None`` while it is not, or where it does not say.
    """

    component: str
    name: str
    node: str
    image: str
    ready: bool
    why: str = ""
    bound: bool = True
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook of a configuration.

    Attributes:
        name: such as ``pods.gpu-turnstile.io``.
        failure_policy: ``Fail`` or ``Ignore``.
        trusts: whether it has a ``caBundle``.
    """

    name: str
    failure_policy: str
    trusts: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a pod that was created as a dry run.

    Attributes:
        stamped: whether it came back with the webhook's stamps.
        refused: the API server's words where it said no; empty where it did not.
    """

    stamped: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads the scheduler extender.

    Attributes:
        holder: its name; empty where nobody does.
        renewed: when it last said so.
        seconds: for how long that holds.
    """

    holder: str
    renewed: datetime | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """What the annotation of a pod says that a container got.

    Attributes:
        namespace: of the pod.
        pod: its name.
        container: its name.
        node: where the pod runs.
        cards: UUIDs.
        cores: hundredths of a card, over all cards.
    """

    namespace: str
    pod: str
    container: str
    node: str
    cards: frozenset[str]
    cores: int


@dataclass(frozen=True, slots=True)
class Owned:
    """An object that carries our label ``app.kubernetes.io/part-of``.

    Attributes:
        kind: as in a manifest.
        namespace: empty for what has none.
        name: of the object.
        component: its ``app.kubernetes.io/component``; empty where it has none.
        release: name and namespace of the Helm release that it belongs to; none for other objects.
    """

    kind: str
    namespace: str
    name: str
    component: str
    release: tuple[str, str] | None = None


Samples: TypeAlias = Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read.

    Attributes:
        now: when.
        domain: of resource and annotation names.
        version: of the API server, such as ``v1.36.2``.
        nodes: all of them.
        programs: all pods of ours.
        mutating: the hooks of the MutatingWebhookConfiguration; ``None`` where there is none.
        policies: names of our ValidatingAdmissionPolicies, and whether each is bound.
        trial: of the pod that was created as a dry run.
        agents: metrics of agents, by node.
        proxies: metrics of device plugin proxies, by node.
        webhooks: metrics of webhook replicas, by pod.
        extenders: metrics of the extender's replicas, by pod.
        lease: the extender's; ``None`` where there is none.
        daemonsets: those in the agents' namespace, by name.
        enforcement: what the agents' DaemonSet sets; ``none`` where it sets nothing.
        held: what the annotations of running pods say.
        owned: our objects.
    """

    now: datetime
    domain: str
    version: Maybe[str]
    nodes: Maybe[Sequence[NodeFacts]]
    programs: Maybe[Sequence[Program]]
    mutating: Maybe[Sequence[Hook] | None]
    policies: Maybe[Mapping[str, bool]]
    trial: Maybe[Trial]
    lease: Maybe[Lease | None]
    daemonsets: Maybe[Mapping[str, DaemonSet]]
    enforcement: Maybe[str]
    held: Maybe[Sequence[Held]]
    owned: Maybe[Sequence[Owned]]
    agents: Mapping[str, Maybe[Samples]] = field(default_factory=dict)
    proxies: Mapping[str, Maybe[Samples]] = field(default_factory=dict)
    webhooks: Mapping[str, Maybe[Samples]] = field(default_factory=dict)
    extenders: Mapping[str, Maybe[Samples]] = field(default_factory=dict)

    @property
    def install(self) -> str:
        """The command that puts back what was installed: Helm's, where Helm installed it.

        Of several releases the one that most objects belong to.
        """
        owned = [] if isinstance(self.owned, Unread) else self.owned
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
