"""Places a pod as kube-scheduler allocates its claim (Dynamic Resource Allocation). Pure.

kube-scheduler takes the first devices that fit, in the order of the ResourceSlice, which is that of
the cards. It goes back where a later container does not fit, and scores nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from contract.claims import MOST_RESULTS, request_names
from contract.demand import ContainerKind, PodDemand
from contract.inventory import Amounts
from placement.capacity import CardSet, need_of
from placement.pods import PodInfo
from placement.search import MOST_TRIES, ContainerPlan, Plan, Rows


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


def first_fit(pod: PodInfo, cards: CardSet, free: Rows) -> Plan | None:
    """Place a pod as kube-scheduler does.

    Args:
        pod: the pod, as of :func:`as_claimed`.
        cards: the cards of a node that serves claims, for its wishes.
        free: their free amounts.

    Returns:
        The plan; ``None`` if there is none, or none was found in time.
    """
    containers = pod.demand.containers
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

    return place(0, free)


def _without(free: Rows, positions: Sequence[int], amounts: Amounts) -> Rows:
    return [
        row.minus(amounts) if position in positions else row for position, row in enumerate(free)
    ]
