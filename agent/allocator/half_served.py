"""Init containers that were answered for one of their two resources alone. Pure.

The kubelet writes its checkpoint once a container has all it asks for, so one that dies in between
leaves a successor that knows nothing of the half it was answered and serves the container from the
start. ``List`` never shows an ordinary init container (fact K4), so it cannot tell the agent.
"""

from collections.abc import Callable

from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.resolver.unseen_inits import is_unseen
from contract.demand import CORES_PER_CARD, ContainerKind
from contract.resource import Resource, count_of


def half_served(ledger: Ledger, view_of: Callable[[PodId], PodView | None]) -> list[ContainerRef]:
    """Return the ordinary init containers that hold only a part and that nothing came after.

    Containers are served in order (fact K1): one that is followed by another had all of it, though
    an agent that has started in between was told of a part only.

    Args:
        ledger: who holds what; nothing in it was answered to the kubelet of now.
        view_of: what the API tells, or told, of a pod.
    """
    return [
        ref
        for ref, kind, held in ledger.refs()
        if kind is ContainerKind.INIT
        and not any(each.answered for each in held.values())
        and _lacks(ledger, ref, view_of(ref.pod))
    ]


def _lacks(ledger: Ledger, ref: ContainerRef, view: PodView | None) -> bool:
    """Return whether a container holds only a part, and is its pod's last that holds any."""
    others = [each for each in ledger.pod_refs(ref.pod) if each != ref]
    counts = {
        resource: len(held.ids) if (held := ledger.holding(ref, resource)) is not None else 0
        for resource in Resource
    }
    if view is None or is_unseen(ref.container):
        # Neither is asked for without the other, but for whole cards.
        whole = counts[Resource.CORE] >= CORES_PER_CARD
        return not all(counts.values()) and not whole and not others
    names = [each.name for each in view.demand.containers]
    container = view.demand.of(ref.container)
    if container is None:
        return False
    later = names[names.index(ref.container) + 1 :]
    return any(
        count_of(container.demand, resource) and not counts[resource] for resource in Resource
    ) and not any(each.container in later for each in others)
