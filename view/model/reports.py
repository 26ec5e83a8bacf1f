"""Reports on a cluster: plain frozen values, the same for terminal, page and JSON.

Cores are hundredths of a card, memory is counted in blocks of the node. Times are RFC 3339 text
as the API server writes it, empty where unknown. Texts come from pods and nodes as they are:
whoever shows them must escape them. What a field means stands in its type: the JSON schema is made
of that.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from contract.inventory import Link
from placement.cluster.holdings import Provenance


class Stage(StrEnum):
    """How far a GPU pod has come."""

    WAITING = "waiting"
    """No node yet."""
    STARTING = "starting"
    """Bound to a node, not running yet."""
    RUNNING = "running"
    FAILING = "failing"
    """Bound, and a container cannot start, or has ended wrongly and is not running again."""
    REFUSED = "refused"
    """Failed because the node could not serve it."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Holder:
    """One container and its part of one card."""

    namespace: Annotated[str, "of the pod; empty for what is unseen."]
    pod: Annotated[str, "name of the pod; empty for what is unseen."]
    container: Annotated[str, "name of the container; empty for what is unseen."]
    cores: Annotated[int, "hundredths of the card."]
    blocks: Annotated[int, "memory blocks of the card."]
    source: Annotated[Provenance, "how this is known."]
    evidence: Annotated[
        str,
        "of the agent's record (``witness``, ``order``, ...); else empty.",
    ] = ""


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card. Held and free add up to the total."""

    uuid: Annotated[str, "its UUID."]
    index: Annotated[int, "its index on the node."]
    model: Annotated[str, "product name."]
    memory: Annotated[int, "bytes."]
    numa: Annotated[int | None, "NUMA node; ``None`` where unknown."]
    unhealthy: Annotated[str, "why it is given to no new container; empty while it is healthy."]
    cores: Annotated[int, "hundredths there are: 100."]
    cores_held: Annotated[int, "of these, held."]
    cores_free: Annotated[int, "of these, free."]
    blocks: Annotated[int, "memory blocks there are."]
    blocks_held: Annotated[int, "of these, held."]
    blocks_free: Annotated[int, "of these, free."]
    overbooked: Annotated[bool, "whether its holders hold more than there is."]
    reported_cores_free: Annotated[int, "free cores by the agent's last word; a little late."]
    reported_blocks_free: Annotated[int, "free blocks by the agent's last word."]
    holders: Annotated[tuple[Holder, ...], "by namespace, pod and container."]
    cores_used: Annotated[
        int | None,
        "measured, hundredths; ``None`` where that is not known.",
    ] = None
    memory_used: Annotated[int | None, "measured, bytes; ``None`` where that is not known."] = None


@dataclass(frozen=True, slots=True)
class LargestFit:
    """The largest share of one card that still fits."""

    card: int
    cores: int
    blocks: int


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node with GPUs, or one that should have some. Sums are of healthy cards."""

    name: Annotated[str, "its name."]
    problem: Annotated[str, "why it serves no GPU pod; empty where it does."]
    notes: Annotated[
        tuple[str, ...],
        "what else is worth knowing, in sentences: cordoned, not ready, a report that differs.",
    ]
    memory_block: Annotated[int, "bytes of one memory block; 0 where unknown."]
    cards: Annotated[tuple[CardReport, ...], "by index."]
    links: Annotated[tuple[Link, ...], "of pairs of cards."]
    cores: Annotated[int, "hundredths there are."]
    cores_held: Annotated[int, "of these, held."]
    cores_free: Annotated[int, "of these, free."]
    blocks: Annotated[int, "memory blocks there are."]
    blocks_held: Annotated[int, "of these, held."]
    blocks_free: Annotated[int, "of these, free."]
    largest_share: Annotated[LargestFit | None, "``None`` where no share fits."]
    whole_cards: Annotated[int, "how many whole cards nobody has anything of."]
    pods: Annotated[int, "how many pods hold something."]
    pool: Annotated[
        str, "of nodes, to which it belongs by its labels; empty where it has none of these."
    ] = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one card that a container has or had."""

    uuid: Annotated[str, "the card; empty where the node's inventory is not known."]
    index: Annotated[
        int | None,
        "its index; ``None`` where the node's inventory is not known, or the card is lost.",
    ]
    model: Annotated[str, "product name; empty where unknown."]
    cores: Annotated[int, "hundredths of it."]
    blocks: Annotated[int, "memory blocks of it."]
    lost: Annotated[bool, "whether the card is not there any more."] = False


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A container that asks for GPUs."""

    name: Annotated[str, "its name."]
    kind: Annotated[str, "``container``, ``init`` or ``sidecar``."]
    cores: Annotated[int, "hundredths it asks for."]
    blocks: Annotated[int, "memory blocks it asks for; 0 for none."]
    parts: Annotated[
        tuple[Part, ...], "what it has got, card by card; empty while nothing is known."
    ] = ()
    source: Annotated[Provenance | None, "how that is known; ``None`` while nothing is."] = None
    evidence: Annotated[str, "of the agent's record; else empty."] = ""
    cores_used: Annotated[
        int | None,
        "measured, hundredths; ``None`` where that is not known.",
    ] = None
    memory_used: Annotated[int | None, "measured, bytes; ``None`` where that is not known."] = None


@dataclass(frozen=True, slots=True)
class Termination:
    """How a container ended."""

    reason: Annotated[str, "in one word, such as ``OOMKilled``."]
    exit_code: Annotated[int, "of its process."]
    signal: Annotated[int, "that ended it; 0 where it was none, or is not told."]
    message: Annotated[str, "in a sentence; what the container itself wrote, if it did."]
    at: Annotated[str, "when; empty where unknown."]


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container by the kubelet, whether it asks for GPUs or not."""

    name: Annotated[str, "its name."]
    state: Annotated[
        str, "``waiting``, ``running`` or ``terminated``; empty where nothing is told."
    ]
    reason: Annotated[str, "why it waits, in one word; else empty."]
    message: Annotated[str, "the same in a sentence."]
    restarts: Annotated[int, "how often it was started again."]
    started: Annotated[str, "when; empty where it was not."]
    ending: Annotated[
        Termination | None,
        "how it ended, or did so before it was started again; ``None`` where it never did.",
    ]


@dataclass(frozen=True, slots=True)
class EventReport:
    """One Event, or a message of an object's status."""

    reason: Annotated[str, "in one word."]
    message: Annotated[str, "in a sentence."]
    warning: Annotated[bool, "whether something went wrong."]
    source: Annotated[str, "who says so, such as ``default-scheduler``."]
    count: Annotated[int, "how often."]
    at: Annotated[str, "when last."]


@dataclass(frozen=True, slots=True)
class PodReport:
    """A pod that asks for GPUs."""

    namespace: Annotated[str, "its namespace."]
    name: Annotated[str, "its name."]
    uid: Annotated[str, "its UID."]
    owner: Annotated[
        str, "kind and name of what made it, such as ``Job/train``; empty where nobody did."
    ]
    node: Annotated[str, "where it is bound; empty while it is not."]
    phase: Annotated[str, "as the API server has it."]
    reason: Annotated[str, "of its status, in one word; mostly empty."]
    message: Annotated[str, "of its status, in a sentence; mostly empty."]
    stage: Annotated[Stage, "how far it has come."]
    deleting: Annotated[bool, "whether it is being deleted."]
    created: Annotated[str, "when it was created."]
    scheduler: Annotated[str, "which scheduler is responsible."]
    containers: Annotated[
        tuple[ContainerReport, ...], "those that ask for GPUs, in the kubelet's order of admission."
    ]
    wishes: Annotated[
        tuple[tuple[str, str], ...],
        "annotation (without its domain) and value, of the pod's author.",
    ]
    statuses: Annotated[
        tuple[ContainerStatus, ...], "of all its containers, init containers first."
    ]
    why: Annotated[
        str, "why it waits, was refused, fails or failed, in one line; empty where all is well."
    ]
    replaced: Annotated[bool, "whether it has ended, and its owner has made another one since."]
    events: Annotated[
        tuple[EventReport, ...], "what is known to have been told about it, the newest first."
    ]


@dataclass(frozen=True, slots=True)
class DeniedReport:
    """A workload whose pods are refused at their creation, by its controller's Event.

    Controllers try again at least every 17 minutes. One that has not said so for longer, or has
    made a pod since, is not reported any more.
    """

    kind: str
    namespace: str
    name: str
    message: str
    count: int
    at: str


@dataclass(frozen=True, slots=True)
class Gap:
    """What could not be read: unknown, which is neither absent nor free."""

    what: Annotated[str, "``nodes``, ``pods`` or ``events``."]
    namespace: Annotated[str, "the only namespace that was read; empty where none was."]
    reason: Annotated[str, "as the API server said it."]
    verb: Annotated[str, "the right that is missing is this one on *what*."] = "list"
    some: Annotated[
        bool, "whether single objects could be read all the same, such as a pod's own node."
    ] = False

    @property
    def whole(self) -> bool:
        """Whether nothing at all of it is known."""
        return not self.namespace and not self.some


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old what is shown is."""

    at: Annotated[
        float, "when it is known to have been so, unix time; 0 where nothing was read yet."
    ] = 0.0
    stale: Annotated[
        str,
        "why it may not be so any more; empty while the API server is heard.",
    ] = ""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster."""

    nodes: Annotated[
        tuple[NodeReport, ...], "by name; those that have nothing to do with GPUs are left out."
    ]
    pods: Annotated[tuple[PodReport, ...], "by namespace and name."]
    denied: Annotated[
        tuple[DeniedReport, ...], "workloads whose pods are refused at their creation."
    ]
    gaps: Annotated[tuple[Gap, ...], "what could not be read; empty where all is known."]
