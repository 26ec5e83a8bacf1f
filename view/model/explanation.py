"""Reports on one pod: its way, and where it fits or would fit. As :mod:`view.model.reports`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from view.model.reports import CardReport, ContainerReport, Gap, PodReport


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One step of a pod's way."""

    name: Annotated[
        str, "``created``, ``admitted``, ``bound``, ``allocated``, ``started``, ``ended``."
    ]
    at: Annotated[str, "when; empty where that is not known."]
    text: Annotated[str, "what happened, in one line."]
    state: Annotated[str, "``done``, ``missing`` (not yet), or ``wrong``."]


@dataclass(frozen=True, slots=True)
class CardFit:
    """One card and one container of a pod."""

    index: Annotated[int, "of the card."]
    uuid: Annotated[str, "of the card."]
    model: Annotated[str, "of the card."]
    cores_free: Annotated[int, "hundredths that are free for this pod."]
    blocks_free: Annotated[int, "memory blocks that are free for this pod."]
    container: Annotated[str, "which container, the one that finds the fewest cards."]
    why_not: Annotated[str, "why the container does not fit on it; empty where it does."]


@dataclass(frozen=True, slots=True)
class NodeFit:
    """One node and a pod."""

    node: Annotated[str, "its name."]
    fits: Annotated[
        bool, "whether all containers of the pod fit on its cards, and it is not cordoned."
    ]
    reason: Annotated[str, "why not, in the scheduler extender's words; empty where it fits."]
    unresolvable: Annotated[bool, "freeing cards would not help."]
    cards: Annotated[tuple[CardFit, ...], "its cards."] = ()
    placement: Annotated[
        tuple[tuple[str, tuple[int, ...]], ...],
        "where it fits, the cards that each container would get: name and indices.",
    ] = ()


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """One change that would let a pod run."""

    kind: Annotated[
        str, "``ask-less``, ``drop-wish``, ``free-pods``, ``heal-card`` or ``open-node``."
    ]
    text: Annotated[str, "what to do, in one line."]
    by: Annotated[
        str,
        "``author`` where the pod's own manifest is changed, ``admin`` where something else is.",
    ]
    nodes: Annotated[tuple[str, ...], "where the pod would then fit."]
    manifest: Annotated[
        str, "fields of the manifest and what to write there; empty where it says the same."
    ] = ""
    needs: Annotated[str, "which rights it takes; empty where the manifest is changed."] = ""
    besides: Annotated[str, "how much more of this kind there is than is told."] = ""


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """One pod's way, and for one that waits what it waits for."""

    pod: Annotated[PodReport, "the pod."]
    summary: Annotated[str, "in one sentence, how it stands and why."]
    steps: Annotated[tuple[ProgressStep, ...], "in the order of time."]
    limits: Annotated[
        tuple[str, ...], "what its containers may use, and what the units are, in sentences."
    ]
    errors: Annotated[
        tuple[str, ...], "what is wrong with the request itself, as the webhook would say it."
    ]
    nodes: Annotated[
        tuple[NodeFit, ...],
        "cards considered: of its own node, or of all nodes while it waits.",
    ]
    changes: Annotated[
        tuple[SuggestedChange, ...],
        "what would let it run, the smallest first; only for one that does not.",
    ]
    no_change: Annotated[
        str, "in a sentence, that nothing would; empty where something would, or it runs."
    ]
    cards: Annotated[tuple[CardReport, ...], "those that it holds, with all their holders."]
    gaps: Annotated[tuple[Gap, ...], "what could not be read."]
    deleted: Annotated[
        str, "when the pod was deleted, of which all this was known then; empty while it exists."
    ] = ""


class FitResult(StrEnum):
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
    """Whether and where the pods of a manifest would fit that are not created yet."""

    kind: Annotated[str, "of the object, such as ``Pod`` or ``Deployment``."]
    namespace: Annotated[str, "its namespace; empty where it names none."]
    name: Annotated[str, "its name."]
    answer: Annotated[FitResult, "whether all its pods fit."]
    replicas: Annotated[
        int, "how many pods it asks for; of a DaemonSet, on how many nodes it wants one."
    ]
    room: Annotated[int, "how many of them fit together."]
    placed: Annotated[tuple[Placed, ...], "where they would be, by name of the node."]
    short: Annotated[str, "what keeps the others away, by how many nodes; empty where all fit."]
    containers: Annotated[tuple[ContainerReport, ...], "what one pod asks for."]
    errors: Annotated[
        tuple[str, ...], "what is wrong with the request itself, as the webhook would say it."
    ]
    nodes: Annotated[
        tuple[NodeFit, ...],
        "all nodes, those where one such pod fits first; none where the request is wrong.",
    ]
    changes: Annotated[tuple[SuggestedChange, ...], "what would let one fit, the smallest first."]
    no_change: Annotated[
        str, "in a sentence, that nothing would; empty where something would, or it fits."
    ]
    gaps: Annotated[tuple[Gap, ...], "what could not be read."]

    @property
    def fits(self) -> bool:
        """Whether all its pods fit."""
        return self.answer is FitResult.FITS
