"""Chooses the cards of a pod on a node: those that are kept for it, if they still fit. No I/O."""

from collections.abc import Mapping

from placement.cluster.node_allocations import NodeAllocations
from placement.cluster.nominations import kept_amounts
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.search import Rows
from scheduler.state import State

# Enough for a pod with many containers: filter has found that it fits.
_MOST_TRIES = 20_000


def choose_cards(
    state: State, pod: PodInfo, allocations: NodeAllocations, free: Rows
) -> Mapping[str, tuple[int, ...]]:
    """Return the indices of a pod's cards by container, under the lock of the state.

    *free* is what the pod finds free on the node (:meth:`scheduler.state.State.snapshot_for`).

    Raises:
        NoPlacement: it does not fit, or the search was given up.
    """
    node = allocations.node
    promised = state.nominations.promised(pod.id.uid).get(node.name)
    if promised is not None:
        cards = promised.nomination.cards
        needed = kept_amounts(pod, promised.nomination, node)
        if needed and all(
            free[position].cores >= amounts.cores and free[position].memory >= amounts.memory
            for position, amounts in needed.items()
        ):
            return cards
    plan = plan_pod(pod, node, free, state.policy, most_tries=_MOST_TRIES)
    if plan is None:
        raise NoPlacement("the search for cards was given up")
    return {
        name: tuple(sorted(node.cards[position].index for position in each.cards))
        for name, each in plan.items()
    }
