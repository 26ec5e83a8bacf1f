"""Reports on one pod: its way, and where it fits or would fit. As :mod:`view.model.reports`."""

from dataclasses import dataclass
from enum import StrEnum

from view.model.reports import CardReport, ContainerReport, Gap, PodReport


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pod's way.

    Attributes:
        name: ``created``, ``admitted``, ``bound``, ``allocated``, ``started``, ``ended``.
        at: when; empty where that is not known.
        text: what happened, in one line.
        state: ``done``, ``missing`` (not yet), or ``wrong``.
    """

    name: str
    at: str
    text: str
    state: str


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """One card and one container of a pod.

    Attributes:
        index: of the card.
        uuid: of the card.
        model: of the card.
        cores_free: hundredths that are free for this pod.
        blocks_free: memory blocks that are free for this pod.
        container: which container, the one that finds the fewest cards.
        why_not: why the container does not fit on it; empty where it does.
    """

    index: int
    uuid: str
    model: str
    cores_free: int
    blocks_free: int
    container: str
    why_not: str


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node and a pod.

    Attributes:
        node: its name.
        fits: whether all containers of the pod fit on its cards, and it is not cordoned.
        reason: why not, in the scheduler extender's words; empty where it fits.
        for_good: freeing cards would not help.
        cards: its cards.
        placing: where it fits, the cards that each container would get: name and indices.
    """

    node: str
    fits: bool
    reason: str
    for_good: bool
    cards: tuple[CardVerdict, ...] = ()
    placing: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One change that would let a pod run.

    Attributes:
        kind: ``ask-less``, ``drop-wish``, ``free-pods``, ``heal-card`` or ``open-node``.
        text: what to do, in one line.
        by: ``author`` where the pod's own manifest is changed, ``admin`` where something else is.
        nodes: where the pod would then fit.
        manifest: fields of the manifest and what to write there; empty where it says the same.
        needs: which rights it takes; empty where the manifest is changed.
        besides: how much more of this kind there is than is told.
    """

    kind: str
    text: str
    by: str
    nodes: tuple[str, ...]
    manifest: str = ""
    needs: str = ""
    besides: str = ""


@dataclass(frozen=True, slots=True)
class PodStory:
    """One pod's way, and for one that waits what it waits for.

    Attributes:
        pod: the pod.
        summary: in one sentence, how it stands and why.
        steps: in the order of time.
        limits: what its containers may use, and what the units are, in sentences.
        errors: what is wrong with the request itself, as the webhook would say it.
        nodes: cards considered: of its own node, or of all nodes while it waits.
        changes: what would let it run, the smallest first; only for one that does not.
        no_change: in a sentence, that nothing would; empty where something would, or it runs.
        cards: those that it holds, with all their holders.
        gaps: what could not be read.
        deleted: when the pod was deleted, of which all this was known then; empty while it exists.
    """

    pod: PodReport
    summary: str
    steps: tuple[Step, ...]
    limits: tuple[str, ...]
    errors: tuple[str, ...]
    nodes: tuple[NodeVerdict, ...]
    changes: tuple[Change, ...]
    no_change: str
    cards: tuple[CardReport, ...]
    gaps: tuple[Gap, ...]
    deleted: str = ""


class Answer(StrEnum):
    """Whether a manifest fits."""

    FITS = "fits"
    """All of its pods, together and beside those of the manifests before it."""
    NOT = "does not fit"
    INVALID = "would be refused"
    """At its creation: the request itself is wrong."""
    UNKNOWN = "not known"
    """What would have to be read for an answer may not be read."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How many pods would fit on a node, beside those on others."""

    node: str
    pods: int


@dataclass(frozen=True, slots=True)
class FitReport:
    """Whether and where the pods of a manifest would fit that are not created yet.

    Attributes:
        kind: of the object, such as ``Pod`` or ``Deployment``.
        namespace: its namespace; empty where it names none.
        name: its name.
        answer: whether all its pods fit.
        replicas: how many pods it asks for; of a DaemonSet, on how many nodes it wants one.
        room: how many of them fit together.
        placed: where they would be, by name of the node.
        short: what keeps the others away, by how many nodes; empty where all fit.
        containers: what one pod asks for.
        errors: what is wrong with the request itself, as the webhook would say it.
        nodes: all nodes, those where one such pod fits first; none where the request is wrong.
        changes: what would let one fit, the smallest first.
        no_change: in a sentence, that nothing would; empty where something would, or it fits.
        gaps: what could not be read.
    """

    kind: str
    namespace: str
    name: str
    answer: Answer
    replicas: int
    room: int
    placed: tuple[Placed, ...]
    short: str
    containers: tuple[ContainerReport, ...]
    errors: tuple[str, ...]
    nodes: tuple[NodeVerdict, ...]
    changes: tuple[Change, ...]
    no_change: str
    gaps: tuple[Gap, ...]

    @property
    def fits(self) -> bool:
        """Whether all its pods fit."""
        return self.answer is Answer.FITS
