"""Reports on a cluster: frozen values, the same for terminal, page and JSON.

Cores are hundredths of a card; memory is counted in blocks of the node. Times are RFC 3339 text
as the API server writes it, empty if unknown. Texts of pods and nodes are unchanged: code that
shows them must escape them. The annotation of a field describes it and becomes its description in
the JSON schema.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from contract.inventory import Link
from contract.text import format_count
from placement.cluster.holdings import Provenance

REFUSES = "its agent refuses pods"
MAY_REFUSE = "unknown whether its agent still refuses pods"


class Stage(StrEnum):
    """Stage of a GPU pod."""

    PENDING = "pending"
    """Without a node."""
    STARTING = "starting"
    """Bound to a node, not running yet."""
    RUNNING = "running"
    FAILING = "failing"
    """Bound; a container cannot start, or has failed and is not running again; or its node does not
    exist."""
    REFUSED = "refused"
    """Failed: agent or kubelet turned it down when it came to the node."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Holder:
    """One container and what it holds of one card."""

    namespace: Annotated[str, "of the pod; empty if the pod may not be read."]
    pod: Annotated[str, "name of the pod; empty if it may not be read."]
    container: Annotated[str, "name of the container; empty if the pod may not be read."]
    cores: Annotated[int, "hundredths of the card."]
    blocks: Annotated[int, "memory blocks of the card."]
    source: Annotated[Provenance, "how this is known."]
    evidence: Annotated[
        str, "of the allocation (``witness``, ``order``, ...); empty if no agent reported it."
    ] = ""


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card. Held and free add up to the total."""

    uuid: Annotated[str, "its UUID."]
    index: Annotated[int, "its index on the node."]
    model: Annotated[str, "product name."]
    memory: Annotated[int, "bytes."]
    numa: Annotated[int | None, "NUMA node; ``None`` if unknown."]
    unhealthy: Annotated[
        str, "its fault, because of which it gets no new containers; empty while it is healthy."
    ]
    cordoned: Annotated[bool, "whether an admin cordoned it: it gets no new containers."]
    cores: Annotated[int, "hundredths in total: 100."]
    cores_held: Annotated[int, "of these, held."]
    cores_free: Annotated[int, "of these, free."]
    blocks: Annotated[int, "memory blocks in total."]
    blocks_held: Annotated[int, "of these, held."]
    blocks_free: Annotated[int, "of these, free."]
    overbooked: Annotated[bool, "whether more is held than the card has."]
    reported_cores_free: Annotated[
        int, "free cores as the agent last reported them; a few seconds late."
    ]
    reported_blocks_free: Annotated[int, "free blocks as the agent last reported them."]
    holders: Annotated[tuple[Holder, ...], "by namespace, pod and container."]
    cores_used: Annotated[int | None, "measured, hundredths; ``None`` if not measured."] = None
    memory_used: Annotated[int | None, "measured, bytes; ``None`` if not measured."] = None

    @property
    def withheld(self) -> bool:
        """Whether the card gets no new containers."""
        return bool(self.unhealthy) or self.cordoned


@dataclass(frozen=True, slots=True)
class LargestFit:
    """The largest share that still fits on one card."""

    card: int
    cores: int
    blocks: int


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node with GPUs, or one that should have some. Sums are over cards that are not withheld."""

    name: Annotated[str, "its name."]
    problem: Annotated[str, "why it is unavailable for GPU pods; empty if it is available."]
    notes: Annotated[
        tuple[str, ...], "further problems, in sentences: cordoned, not ready, differing reports."
    ]
    memory_block: Annotated[int, "bytes of one memory block; 0 if unknown."]
    cards: Annotated[tuple[CardReport, ...], "by index."]
    links: Annotated[tuple[Link, ...], "between pairs of cards."]
    cores: Annotated[int, "hundredths in total."]
    cores_held: Annotated[int, "of these, held."]
    cores_free: Annotated[int, "of these, free."]
    blocks: Annotated[int, "memory blocks in total."]
    blocks_held: Annotated[int, "of these, held."]
    blocks_free: Annotated[int, "of these, free."]
    largest_share: Annotated[LargestFit | None, "``None`` if no share fits, or that is unknown."]
    whole_cards: Annotated[
        int,
        "number of cards of which no core is held, without MIG instances; 0 if that is not known.",
    ]
    pods: Annotated[int, "number of pods that hold something."]
    pool: Annotated[
        str, "its node pool, from its labels; empty if it has none of these labels."
    ] = ""
    refusing: Annotated[
        str,
        "what is wrong with it, for which its agent refused the last pods, as the agent words it; "
        "empty if there is none, after an hour (5 minutes if the agent has started since), and "
        "once it has admitted a later pod.",
    ] = ""
    refusing_unknown: Annotated[
        bool,
        "whether it is unknown if its agent still refuses pods: none was refused in the last 5 "
        "minutes, or the agent has started since.",
    ] = False
    unconfirmed: Annotated[
        tuple[str, ...],
        "running pods whose cards its agent has not recorded. Each may hold other cards than those "
        "where it is shown, so no card counts as free.",
    ] = ()

    @property
    def unusable(self) -> str:
        """Why it gives no card to a new pod, whatever is free; empty if it does."""
        refuses = MAY_REFUSE if self.refusing_unknown else REFUSES
        return self.problem or (self.refusing and f"{refuses}: {self.refusing}")


@dataclass(frozen=True, slots=True)
class Part:
    """What a container holds or held of one card."""

    uuid: Annotated[str, "UUID of the card; empty if the node's inventory is unknown."]
    index: Annotated[
        int | None, "its index; ``None`` if the node's inventory is unknown or the card is missing."
    ]
    model: Annotated[str, "product name; empty if unknown."]
    cores: Annotated[int, "hundredths of it."]
    blocks: Annotated[int, "memory blocks of it."]
    lost: Annotated[bool, "whether the card is missing on the node, or the node is missing."] = (
        False
    )


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A container that requests GPUs."""

    name: Annotated[str, "its name."]
    kind: Annotated[str, "``container``, ``init`` or ``sidecar``."]
    cores: Annotated[int, "requested hundredths, of all its cards together."]
    blocks: Annotated[int, "requested memory blocks, of all its cards together; 0 for none."]
    parts: Annotated[tuple[Part, ...], "what it holds of each card; empty while unknown."] = ()
    source: Annotated[Provenance | None, "how that is known; ``None`` while unknown."] = None
    evidence: Annotated[str, "of the allocation; empty if no agent reported it."] = ""
    cores_used: Annotated[int | None, "measured, hundredths; ``None`` if not measured."] = None
    memory_used: Annotated[int | None, "measured, bytes; ``None`` if not measured."] = None
    split: Annotated[
        int, "number of cards over which its share is divided (``gpu-cards-<container>``); else 1."
    ] = 1


@dataclass(frozen=True, slots=True)
class Termination:
    """How a container ended."""

    reason: Annotated[str, "in one word, such as ``OOMKilled``."]
    exit_code: Annotated[int, "of its process."]
    signal: Annotated[int, "that ended it; 0 if none is known."]
    message: Annotated[str, "in a sentence; the container's termination message if it wrote one."]
    at: Annotated[str, "time; empty if unknown."]


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """State of a container as the kubelet reports it, with or without GPUs."""

    name: Annotated[str, "its name."]
    state: Annotated[str, "``waiting``, ``running`` or ``terminated``; empty if unknown."]
    reason: Annotated[str, "why it waits, in one word; else empty."]
    message: Annotated[str, "the same in a sentence."]
    restarts: Annotated[int, "number of restarts."]
    started: Annotated[str, "time of its start; empty if it did not start."]
    ending: Annotated[
        Termination | None,
        "how it ended, now or before its last restart; ``None`` if it never ended.",
    ]


@dataclass(frozen=True, slots=True)
class EventReport:
    """One Event about a pod."""

    reason: Annotated[str, "in one word."]
    message: Annotated[str, "in a sentence."]
    warning: Annotated[bool, "whether its type is Warning."]
    source: Annotated[str, "component that reports it, such as ``default-scheduler``."]
    count: Annotated[int, "number of occurrences."]
    at: Annotated[str, "time of the last occurrence."]


@dataclass(frozen=True, slots=True)
class PodReport:
    """A pod that requests GPUs."""

    namespace: Annotated[str, "its namespace."]
    name: Annotated[str, "its name."]
    uid: Annotated[str, "its UID."]
    owner: Annotated[
        str, "kind and name of its controller, such as ``Job/train``; empty if it has none."
    ]
    node: Annotated[str, "to which it is bound; empty while it is not bound."]
    phase: Annotated[str, "phase of its status."]
    reason: Annotated[str, "of its status, in one word; mostly empty."]
    message: Annotated[str, "of its status, in a sentence; mostly empty."]
    stage: Annotated[Stage, "its stage."]
    deleting: Annotated[bool, "whether it is being deleted."]
    created: Annotated[str, "time of its creation."]
    scheduler: Annotated[str, "name of the responsible scheduler."]
    containers: Annotated[
        tuple[ContainerReport, ...], "those that request GPUs, in the kubelet's order of admission."
    ]
    wishes: Annotated[
        tuple[tuple[str, str], ...],
        "the author's annotations for placement: name without domain, and value.",
    ]
    translated_from: Annotated[
        str,
        "what its author wrote in the names of another system, of which the webhook made this pod; "
        "mostly empty.",
    ]
    statuses: Annotated[
        tuple[ContainerStatus, ...], "states of all its containers, init containers first."
    ]
    why: Annotated[
        str,
        "why it is pending, refused, failing or failed, in one line; empty if nothing is wrong.",
    ]
    replaced: Annotated[
        bool,
        "whether it has ended and its owner has created another pod since; if it was refused, "
        "another one that its node did not refuse.",
    ]
    misplaced: Annotated[
        bool,
        "whether it was refused because no card fits, on a node that a scheduler chose without "
        "seeing cards.",
    ]
    events: Annotated[tuple[EventReport, ...], "known Events about it, the newest first."]
    claim_template: Annotated[
        str,
        "name of the ResourceClaimTemplate of the claim by which it gets its cards; empty if it "
        "gets them by a device plugin.",
    ] = ""
    claim: Annotated[str, "name of that ResourceClaim; empty while it is not made."] = ""
    node_missing: Annotated[
        bool, "whether it has not ended, and the node to which it is bound does not exist."
    ] = False


@dataclass(frozen=True, slots=True)
class DeniedReport:
    """A workload whose pods are denied at creation, as reported by its controller's Event.

    Controllers try again at least every 17 minutes. A workload is not reported any more after 20
    minutes without such an Event, once it has a newer pod, is gone or wants no more pods.
    """

    kind: str
    namespace: str
    name: str
    message: str
    count: int
    at: str
    missing: Annotated[int | None, "pods that it lacks; ``None`` if it could not be read."] = None
    wanted: Annotated[int | None, "pods that it wants; ``None`` if it could not be read."] = None

    @property
    def lacks(self) -> str:
        """How many of its pods cannot be created: ``1 of 3 pods``; ``pods`` if that is unknown."""
        if not self.missing:
            return "pods"
        return f"{self.missing} of {format_count(self.wanted or 0, 'pod')}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Objects that could not be read: they are unknown, neither absent nor free."""

    what: Annotated[str, "``nodes``, ``pods`` or ``events``."]
    namespace: Annotated[str, "the only namespace that was read; empty if none was read."]
    reason: Annotated[str, "message of the API server."]
    verb: Annotated[str, "the missing permission on *what*."] = "list"
    some: Annotated[bool, "whether single objects could be read, such as the node of a pod."] = (
        False
    )

    @property
    def whole(self) -> bool:
        """Whether nothing of it is known."""
        return not self.namespace and not self.some


@dataclass(frozen=True, slots=True)
class Freshness:
    """Age of the data."""

    at: Annotated[
        float,
        "time at which the data was known to be current, unix time; 0 if nothing was read yet.",
    ] = 0.0
    stale: Annotated[str, "why the data may be outdated; empty while the API server responds."] = ""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster."""

    nodes: Annotated[
        tuple[NodeReport, ...], "by name; nodes without any relation to GPUs are left out."
    ]
    pods: Annotated[tuple[PodReport, ...], "by namespace and name."]
    denied: Annotated[tuple[DeniedReport, ...], "workloads whose pods are denied at creation."]
    gaps: Annotated[tuple[Gap, ...], "what could not be read; empty if all was read."]
