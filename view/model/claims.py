"""Pods that get their cards by a claim of Dynamic Resource Allocation, and where they fit. Pure.

A pod with a claim fits only on nodes that serve claims, one without only on nodes with a device
plugin. For a claim kube-scheduler takes the first devices that fit, in the order of the
ResourceSlice, which is that of the cards. It neither scores them nor preempts pods for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated

from contract.claims import MOST_RESULTS, request_names
from contract.demand import ContainerKind, PodDemand
from contract.inventory import Amounts
from placement.capacity import need_of
from placement.cluster.holdings import NodeSnapshot
from placement.pods import PodInfo
from placement.search import MOST_TRIES, ContainerPlan, Plan, Rows
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

    Args:
        pod: the pod.
        events: its Events, the newest first.
        template: its template; ``None`` if that was not read.
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


def refusal_by_kind(node: Occupancy, *, by_claim: bool) -> str:
    """Return why a node serves no pod of this kind; empty if it does."""
    if by_claim == node.facts.serves_claims:
        return ""
    return NO_CLAIMS if by_claim else CLAIMS_ONLY


def of_kind(nodes: Iterable[Occupancy], *, by_claim: bool) -> list[Occupancy]:
    """Return the nodes that serve pods with a claim, or those without one."""
    return [each for each in nodes if not refusal_by_kind(each, by_claim=by_claim)]


def lasting_demand(demand: PodDemand) -> PodDemand:
    """Return what the containers of a pod with a claim hold: for as long as the pod lives.

    An init container with a request of its own holds it as a sidecar does.
    """
    own = request_names(demand)
    return PodDemand(
        tuple(
            replace(each, kind=ContainerKind.SIDECAR)
            if each.kind is ContainerKind.INIT and own[each.name] == each.name
            else each
            for each in demand.containers
        )
    )


def as_claimed(pod: PodInfo) -> PodInfo:
    """Return a pod with only those containers that have a request in its claim."""
    demand = lasting_demand(pod.demand)
    own = [each for each in demand.containers if each.kind is not ContainerKind.INIT]
    return replace(pod, demand=PodDemand(tuple(own)))


def first_fit(pod: PodInfo, snapshot: NodeSnapshot) -> Plan | None:
    """Place a pod of :func:`as_claimed` as kube-scheduler does.

    Returns:
        The plan; ``None`` if there is none, or none was found in time.
    """
    cards, containers = snapshot.node.card_set_for(pod.wishes), pod.demand.containers
    tries = MOST_TRIES if len(containers) <= MOST_RESULTS else 0

    def place(at: int, free: Rows) -> Mapping[str, ContainerPlan] | None:
        nonlocal tries
        if at == len(containers):
            return {}
        need = need_of(containers[at].demand)
        for chosen in combinations(cards.fitting(free, need), need.demand.cards):
            tries -= 1
            if tries < 0:
                return None
            if not cards.links.fulfils(chosen, pod.wishes.link):
                continue
            rest = place(at + 1, _without(free, chosen, need.per_card))
            if rest is not None:
                taken = ContainerPlan(chosen, (need.per_card,) * len(chosen))
                return {containers[at].name: taken, **rest}
        return None

    return place(0, snapshot.free)


def _without(free: Rows, positions: Sequence[int], amounts: Amounts) -> Rows:
    return [
        row.minus(amounts) if position in positions else row for position, row in enumerate(free)
    ]
