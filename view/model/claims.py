"""Why a pod has no claim yet, and which nodes serve pods with one; in words. Pure.

A pod with a claim of Dynamic Resource Allocation fits only on nodes that serve claims, one without
only on nodes with a device plugin. Where it fits: :mod:`placement.first_fit`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from view.model.occupancy import Occupancy
from view.model.reports import EventReport, PodReport

CLAIMS_ONLY = "the node serves only pods with a claim"
NO_CLAIMS = "the node serves no claims"
FIRST_FIT = (
    "By a claim: kube-scheduler takes the first cards that fit, without scores, and preempts no "
    "pod for a card"
)
NOT_CLAIMED = (
    "without a claim on a node that serves claims, it has no card, or one that is not counted "
    "(GPUNotClaimed): delete it, so that it is created again with a claim"
)
STATIC = (
    "a static pod gets no card by a claim (GPUNotClaimed): remove its manifest, and create it "
    "through the API server"
)
UNSERVED = (
    "it holds cards by a claim, and its node does not serve claims any more (label "
    "gpu-turnstile.io/mode=dra): deleted, it stays Terminating until the node has the label again"
)
NOT_CREATED_WITH_ONE = (
    "it has no claim, and all nodes with cards serve only pods with one: delete it, so that it is "
    "created again with a claim (webhook --claims on)"
)
CREATED_WITH_ONE = (
    "it has a claim, and no node serves claims (label gpu-turnstile.io/mode=dra): if the webhook's "
    "--claims is no longer on, delete it, so that it is created again without a claim"
)
STILL_KNOWN = (
    "The kubelet still knows the device plugin, which it forgets about five minutes after the "
    "plugin's end"
)
UNSEEN = "or it does not see these cards: kubectl gpu doctor"
NO_DEVICES = "cannot allocate all claims"
"""In kube-scheduler's message for each node whose ResourceSlices have no room."""

NOT_PREPARED = ("GPUStartVetoed", "GPURefused", "FailedPrepareDynamicResources")
"""Events of agent and kubelet about a bound pod that cannot start yet."""

WAITS, _NOT_MADE = "GPUClaimWaits", "FailedResourceClaimCreation"


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """Whether the template that a pod names exists."""

    exists: Annotated[bool, "whether it does; false if it could not be read."]
    unread: Annotated[str, "why it could not be read; else empty."] = ""


def why_no_claim(
    pod: PodReport, events: Iterable[EventReport], template: TemplateFacts | None
) -> str:
    """Return why a pod has no claim yet; empty if it has one, or is to get none.

    Its *events* are sorted, the newest first; *template* is ``None`` if it was not read.
    """
    if not pod.claim_template or pod.claim:
        return ""
    name, said = f"template {pod.claim_template}", dict[str, str]()
    for each in events:
        said.setdefault(each.reason, each.message)
    if template is not None and template.exists:
        reason = said.get(_NOT_MADE, "")
        # Until a template exists, kube-controller-manager reports that it does not find it.
        quoted = f': "{reason}"' if reason and "not found" not in reason else ""
        return f"its claim is not made yet, although {name} exists{quoted}"
    if WAITS in said:
        return f"it waits for a claim: {said[WAITS]}"
    if template is None:
        return f"it waits for a claim ({name})"
    if template.unread:
        return f"it waits for a claim; whether {name} exists is unknown ({template.unread})"
    return (
        f"it waits for a claim: {name} is not made yet. If this lasts, the program that makes it "
        "does not run: kubectl gpu doctor"
    )


def of_kind(nodes: Iterable[Occupancy], *, by_claim: bool) -> list[Occupancy]:
    """Return the nodes that serve pods with a claim, or those without one."""
    return [each for each in nodes if each.facts.serves_claims is by_claim]
