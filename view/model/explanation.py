"""Reports on one pod: its progress, and where it fits. Values as in :mod:`view.model.reports`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from view.model.reports import CardReport, ContainerReport, Gap, PodReport


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One step of a pod's progress."""

    name: Annotated[
        str,
        "``created``, ``admitted``, ``claimed`` (with a claim only), ``bound``, ``allocated``, "
        "``started``, ``ended``.",
    ]
    at: Annotated[str, "time; empty if unknown."]
    text: Annotated[str, "what happened, in one line."]
    state: Annotated[str, "``done``, ``missing`` (not yet), or ``wrong``."]


@dataclass(frozen=True, slots=True)
class CardFit:
    """Whether one container of a pod fits on one card."""

    index: Annotated[int, "of the card."]
    uuid: Annotated[str, "of the card."]
    model: Annotated[str, "of the card."]
    cores_free: Annotated[int, "hundredths that are free for this pod."]
    blocks_free: Annotated[int, "memory blocks that are free for this pod."]
    container: Annotated[str, "name of the container: the one that fits on the fewest cards."]
    why_not: Annotated[str, "why the container does not fit; empty if it fits."]


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Whether a pod fits on one node."""

    node: Annotated[str, "its name."]
    fits: Annotated[
        bool, "whether all containers of the pod fit on its cards and it is not cordoned."
    ]
    reason: Annotated[str, "why not, as the scheduler extender words it; empty if it fits."]
    unresolvable: Annotated[bool, "whether deleting pods would not help."]
    cards: Annotated[tuple[CardFit, ...], "its cards."] = ()
    placement: Annotated[
        tuple[tuple[str, tuple[int, ...]], ...],
        "if it fits, the cards that each container would get: name and indices.",
    ] = ()


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """One change after which a pod would fit."""

    kind: Annotated[
        str,
        "``reduce-request``, ``remove-wish``, ``delete-pods``, ``repair-card``, "
        "``uncordon-card`` or ``enable-node``.",
    ]
    text: Annotated[str, "what to do, in one line."]
    by: Annotated[
        str,
        "``author`` if the manifest of the pod is changed, else ``admin``.",
    ]
    nodes: Annotated[tuple[str, ...], "on which the pod would then fit."]
    manifest: Annotated[str, "fields of the manifest with their new values; empty if none."] = ""
    needs: Annotated[str, "required permissions or access; empty if the manifest is changed."] = ""
    besides: Annotated[str, "how many more changes of this kind exist."] = ""


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """Progress of one pod, and why it does not run."""

    pod: Annotated[PodReport, "the pod."]
    summary: Annotated[str, "its state and the reason in one sentence."]
    steps: Annotated[tuple[ProgressStep, ...], "in order of time."]
    limits: Annotated[tuple[str, ...], "what its containers may use, and the units, in sentences."]
    errors: Annotated[tuple[str, ...], "errors in the request itself, as the webhook words them."]
    warnings: Annotated[
        tuple[str, ...], "annotations and labels that nobody reads, as the webhook words it."
    ]
    nodes: Annotated[
        tuple[NodeFit, ...],
        "candidate cards: of its own node, or of all nodes while it is pending.",
    ]
    changes: Annotated[
        tuple[SuggestedChange, ...],
        "after each of which it would fit, the smallest first; only for pending and refused pods.",
    ]
    no_change: Annotated[str, "a sentence if no change was found; else empty."]
    cards: Annotated[tuple[CardReport, ...], "that it holds, with all their holders."]
    gaps: Annotated[tuple[Gap, ...], "what could not be read."]
    node_problem: Annotated[
        str, "why the node where it holds cards is unavailable; empty if it is not."
    ] = ""
    deleted: Annotated[
        str, "when the pod was deleted; all else is its last known state. Empty while it exists."
    ] = ""


class FitResult(StrEnum):
    """Whether the pods of a manifest fit."""

    FITS = "fits"
    """All its pods fit, together with those of the manifests before it."""
    NOT = "does not fit"
    INVALID = "would be denied"
    """The webhook would deny its pods: the request itself is invalid."""
    UNKNOWN = "unknown"
    """Nodes cannot be read, too many pods fit to count them, or it depends on the webhook's
    ``--claims``."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How many pods would be placed on one node."""

    node: str
    pods: int


@dataclass(frozen=True, slots=True)
class FitReport:
    """Whether and where the pods of a manifest would fit if they were created now."""

    kind: Annotated[str, "of the object, such as ``Pod`` or ``Deployment``."]
    namespace: Annotated[str, "its namespace; empty if it has none."]
    name: Annotated[str, "its name."]
    result: Annotated[FitResult, "whether all its pods fit."]
    replicas: Annotated[
        int,
        "how many pods it requests; for a DaemonSet, the number of nodes that are not cordoned.",
    ]
    room: Annotated[int, "how many of them fit together."]
    placed: Annotated[
        tuple[Placed, ...],
        "on which nodes, by name; empty if that depends on the webhook's ``--claims``.",
    ]
    short: Annotated[
        str, "why the others are not placed, with the number of nodes; empty if all fit."
    ]
    containers: Annotated[tuple[ContainerReport, ...], "requests of one pod."]
    errors: Annotated[tuple[str, ...], "errors in the request itself, as the webhook words them."]
    nodes: Annotated[
        tuple[NodeFit, ...],
        "all nodes, those on which one such pod fits first; none if the request is invalid.",
    ]
    changes: Annotated[
        tuple[SuggestedChange, ...], "after each of which one pod would fit, the smallest first."
    ]
    no_change: Annotated[str, "a sentence if no change was found; else empty."]
    warnings: Annotated[
        tuple[str, ...], "what nobody reads, and what to write instead, as the webhook words it."
    ]
    gaps: Annotated[tuple[Gap, ...], "what could not be read."]
    claims: Annotated[
        str, "what is different because nodes serve claims, in a sentence; empty if nothing is."
    ] = ""

    @property
    def fits(self) -> bool:
        """Whether all its pods fit."""
        return self.result is FitResult.FITS
