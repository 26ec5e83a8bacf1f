"""Reports on a cluster: plain frozen values, the same for terminal, page and JSON.

Cores are hundredths of a card, memory is counted in blocks of the node. Times are RFC 3339 text
as the API server writes it, empty where unknown. Texts come from pods and nodes as they are:
whoever shows them must escape them.
"""

from dataclasses import dataclass
from enum import StrEnum

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
    """One container and its part of one card.

    Attributes:
        namespace: of the pod; empty for what is unseen.
        pod: name of the pod; empty for what is unseen.
        container: name of the container; empty for what is unseen.
        cores: hundredths of the card.
        blocks: memory blocks of the card.
        source: how this is known.
        evidence: of the agent's record (``witness``, ``order``, ...); else empty.
    """

    namespace: str
    pod: str
    container: str
    cores: int
    blocks: int
    source: Provenance
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card. Held and free add up to the total.

    Attributes:
        uuid: its UUID.
        index: its index on the node.
        model: product name.
        memory: bytes.
        numa: NUMA node; ``None`` where unknown.
        unhealthy: why it is given to no new container; empty while it is healthy.
        cores: hundredths there are: 100.
        cores_held: of these, held.
        cores_free: of these, free.
        blocks: memory blocks there are.
        blocks_held: of these, held.
        blocks_free: of these, free.
        overbooked: whether its holders hold more than there is.
        reported_cores_free: free cores by the agent's last word; a little late.
        reported_blocks_free: free blocks by the agent's last word.
        holders: by namespace, pod and container.
        cores_used: measured, hundredths; ``None`` where that is not known.
        memory_used: measured, bytes; ``None`` where that is not known.
    """

    uuid: str
    index: int
    model: str
    memory: int
    numa: int | None
    unhealthy: str
    cores: int
    cores_held: int
    cores_free: int
    blocks: int
    blocks_held: int
    blocks_free: int
    overbooked: bool
    reported_cores_free: int
    reported_blocks_free: int
    holders: tuple[Holder, ...]
    cores_used: int | None = None
    memory_used: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """The largest share of one card that still fits."""

    card: int
    cores: int
    blocks: int


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node with GPUs, or one that should have some. Sums are of healthy cards.

    Attributes:
        name: its name.
        problem: why it serves no GPU pod; empty where it does.
        notes: what else is worth knowing, in sentences: cordoned, not ready, a report that differs.
        memory_block: bytes of one memory block; 0 where unknown.
        cards: by index.
        links: of pairs of cards.
        cores: hundredths there are.
        cores_held: of these, held.
        cores_free: of these, free.
        blocks: memory blocks there are.
        blocks_held: of these, held.
        blocks_free: of these, free.
        largest_share: ``None`` where no share fits.
        whole_cards: how many whole cards nobody has anything of.
        pods: how many pods hold something.
        pool: of nodes, to which it belongs by its labels; empty where it has none of these.
    """

    name: str
    problem: str
    notes: tuple[str, ...]
    memory_block: int
    cards: tuple[CardReport, ...]
    links: tuple[Link, ...]
    cores: int
    cores_held: int
    cores_free: int
    blocks: int
    blocks_held: int
    blocks_free: int
    largest_share: Share | None
    whole_cards: int
    pods: int
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one card that a container has or had.

    Attributes:
        uuid: the card; empty where the node's inventory is not known.
        index: its index; ``None`` where the node's inventory is not known, or the card is lost.
        model: product name; empty where unknown.
        cores: hundredths of it.
        blocks: memory blocks of it.
        lost: whether the card is not there any more.
    """

    uuid: str
    index: int | None
    model: str
    cores: int
    blocks: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A container that asks for GPUs.

    Attributes:
        name: its name.
        kind: ``container``, ``init`` or ``sidecar``.
        cores: hundredths it asks for.
        blocks: memory blocks it asks for; 0 for none.
        parts: what it has got, card by card; empty while nothing is known.
        source: how that is known; ``None`` while nothing is.
        evidence: of the agent's record; else empty.
        cores_used: measured, hundredths; ``None`` where that is not known.
        memory_used: measured, bytes; ``None`` where that is not known.
    """

    name: str
    kind: str
    cores: int
    blocks: int
    parts: tuple[Part, ...] = ()
    source: Provenance | None = None
    evidence: str = ""
    cores_used: int | None = None
    memory_used: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended.

    Attributes:
        reason: in one word, such as ``OOMKilled``.
        exit_code: of its process.
        signal: that ended it; 0 where it was none, or is not told.
        message: in a sentence; what the container itself wrote, if it did.
        at: when; empty where unknown.
    """

    reason: str
    exit_code: int
    signal: int
    message: str
    at: str


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container by the kubelet, whether it asks for GPUs or not.

    Attributes:
        name: its name.
        state: ``waiting``, ``running`` or ``terminated``; empty where nothing is told.
        reason: why it waits, in one word; else empty.
        message: the same in a sentence.
        restarts: how often it was started again.
        started: when; empty where it was not.
        ending: how it ended, or did so before it was started again; ``None`` where it never did.
    """

    name: str
    state: str
    reason: str
    message: str
    restarts: int
    started: str
    ending: Ending | None


@dataclass(frozen=True, slots=True)
class EventReport:
    """One Event, or a message of an object's status.

    Attributes:
        reason: in one word.
        message: in a sentence.
        warning: whether something went wrong.
        source: who says so, such as ``default-scheduler``.
        count: how often.
        at: when last.
    """

    reason: str
    message: str
    warning: bool
    source: str
    count: int
    at: str


@dataclass(frozen=True, slots=True)
class PodReport:
    """A pod that asks for GPUs.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        owner: kind and name of what made it, such as ``Job/train``; empty where nobody did.
        node: where it is bound; empty while it is not.
        phase: as the API server has it.
        reason: of its status, in one word; mostly empty.
        message: of its status, in a sentence; mostly empty.
        stage: how far it has come.
        deleting: whether it is being deleted.
        created: when it was created.
        scheduler: which scheduler is responsible.
        containers: those that ask for GPUs, in the kubelet's order of admission.
        wishes: annotation (without its domain) and value, of the pod's author.
        statuses: of all its containers, init containers first.
        why: why it waits, was refused, fails or failed, in one line; empty where all is well.
        replaced: whether it has ended, and its owner has made another one since.
        events: what is known to have been told about it, the newest first.
    """

    namespace: str
    name: str
    uid: str
    owner: str
    node: str
    phase: str
    reason: str
    message: str
    stage: Stage
    deleting: bool
    created: str
    scheduler: str
    containers: tuple[ContainerReport, ...]
    wishes: tuple[tuple[str, str], ...]
    statuses: tuple[ContainerStatus, ...]
    why: str
    replaced: bool
    events: tuple[EventReport, ...]


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
    """What could not be read: unknown, which is neither absent nor free.

    Attributes:
        what: ``nodes``, ``pods`` or ``events``.
        namespace: the only namespace that was read; empty where none was.
        reason: as the API server said it.
        verb: the right that is missing is this one on *what*.
        some: whether single objects could be read all the same, such as a pod's own node.
    """

    what: str
    namespace: str
    reason: str
    verb: str = "list"
    some: bool = False

    @property
    def whole(self) -> bool:
        """Whether nothing at all of it is known."""
        return not self.namespace and not self.some


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old what is shown is.

    Attributes:
        at: when it is known to have been so, unix time; 0 where nothing was read yet.
        stale: why it may not be so any more; empty while the API server is heard.
    """

    at: float = 0.0
    stale: str = ""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster.

    Attributes:
        nodes: by name; those that have nothing to do with GPUs are left out.
        pods: by namespace and name.
        denied: workloads whose pods are refused at their creation.
        gaps: what could not be read; empty where all is known.
    """

    nodes: tuple[NodeReport, ...]
    pods: tuple[PodReport, ...]
    denied: tuple[DeniedReport, ...]
    gaps: tuple[Gap, ...]
