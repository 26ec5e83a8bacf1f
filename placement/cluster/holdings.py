"""What a pod holds of its node's cards: by record, by a scheduler's choice, or simulated. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, PodDemand
from contract.inventory import NOTHING, Amounts
from contract.resource import RESOURCES
from placement.cluster.nodes import Node
from placement.cluster.plan import plan_pod
from placement.cluster.pods import Pod
from placement.errors import NoPlacement
from placement.held import Taken
from placement.scoring import Policy
from placement.search import Plan, Rows


class NodeSnapshot:
    """A node at one moment: what is free, and sums that many decisions need. Never changed.

    Attributes:
        node: the node.
        free: of each card, by its position.
        rows: the same of healthy cards alone.
        totals: cores and memory blocks of healthy cards: all there are, and those taken.
    """

    __slots__ = ("free", "node", "rows", "totals")

    def __init__(self, node: Node, free: Iterable[tuple[int, int]]) -> None:
        self.node = node
        self.free = tuple([Amounts(*row) for row in free])
        if len(self.free) != len(node.cards):
            raise ValueError(f"{len(node.cards)} cards, and what is free of {len(self.free)}")
        healthy, sizes = node.card_set.healthy, node.sizes
        self.rows = [self.free[at] for at in healthy]
        self.totals = [
            (there := sum([sizes[at][slot] for at in healthy]), there - free)
            for slot, free in enumerate(map(sum, zip(NOTHING, *self.rows, strict=True)))
        ]


def known_cards(pod: Pod, node: Node) -> dict[str, tuple[int, ...]] | None:
    """Return the cards of each container, by place; ``None`` when one is not known.

    As the agent counts it: an ordinary init container without a record, beside containers that
    have one, holds nothing that anybody knows of.
    """
    places, by_index = _places(node)
    recorded = {
        name: tuple(sorted(places[uuid] for uuid in uuids))
        for name, uuids in pod.recorded
        if all(uuid in places for uuid in uuids)
    }
    chosen = dict(pod.chosen)
    found: dict[str, tuple[int, ...]] = {}
    for container in pod.demand.containers:
        cards = recorded.get(container.name)
        if cards is None:
            if recorded and container.kind is ContainerKind.INIT:
                continue
            cards = _chosen(container, chosen.get(container.name, ()), by_index)
            if cards is None:
                return None
        found[container.name] = cards
    return found


@lru_cache(maxsize=4096)
def _places(node: Node) -> tuple[Mapping[str, int], Mapping[int, int]]:
    """Return the places of a node's cards, by UUID and by index."""
    return (
        {card.uuid: place for place, card in enumerate(node.cards)},
        {card.index: place for place, card in enumerate(node.cards)},
    )


def _chosen(
    container: ContainerDemand, indices: Sequence[int], by_index: Mapping[int, int]
) -> tuple[int, ...] | None:
    if len(indices) != container.demand.cards or not all(each in by_index for each in indices):
        return None
    return tuple(sorted(by_index[each] for each in indices))


def taken_on(demand: PodDemand, cards: Mapping[str, Sequence[int]]) -> Taken:
    """Count what containers take of given cards.

    What an ordinary init container took is handed on to the containers after it, before anything
    is taken afresh (fact K7), and is the pod's until it has ended (K4).
    """
    if len(demand.containers) == 1:  # nobody to hand anything on to
        only = demand.containers[0]
        on = cards.get(only.name, ())
        if len(on) == 1 and only.demand.cards == 1:
            return ((on[0], min(only.demand.cores, CORES_PER_CARD), only.demand.memory),)
    taken: dict[int, list[int]] = {}
    reusable: dict[int, list[int]] = {}
    for container in demand.containers:
        on = cards.get(container.name, ())
        asked = container.demand
        cores = asked.cores if asked.is_share else CORES_PER_CARD
        for slot, resource in enumerate(RESOURCES):
            quotas = asked.per_card(resource, len(on)) if slot else (cores,) * len(on)
            count = sum(quotas)
            handed = min(count, sum(reusable.get(place, NOTHING)[slot] for place in on))
            missing = count - handed
            for place, quota in zip(on, quotas, strict=False):
                left = reusable.setdefault(place, [*NOTHING])
                reused = min(left[slot], handed)
                handed -= reused
                fresh = min(max(quota - reused, 0), missing)
                missing -= fresh
                taken.setdefault(place, [*NOTHING])[slot] += fresh
                left[slot] += fresh if container.kind is ContainerKind.INIT else -reused
    return tuple((at, cores, memory) for at, (cores, memory) in sorted(taken.items()))


def simulate(pod: Pod, node: Node, free: Rows, policy: Policy) -> Taken:
    """Place a pod of which nobody has said where it is, as the agent would.

    One that fits nowhere will be refused by the agent, or the agent knows more: it counts on the
    emptiest cards until one or the other is told.
    """
    return simulate_cards(pod, node, free, policy)[1]


def simulate_cards(
    pod: Pod, node: Node, free: Rows, policy: Policy
) -> tuple[Mapping[str, Sequence[int]], Taken]:
    """Place a pod as :func:`simulate` does; return the cards of each container too, by place."""
    known = _part_known(pod, node)
    try:
        plan = plan_pod(pod, node, free, policy, fixed=known)
    except NoPlacement:
        plan = None
    if plan is not None:
        return {name: each.cards for name, each in plan.items()}, taken_by(plan)
    cards: dict[str, Sequence[int]] = dict(known)
    emptiest = sorted(range(len(free)), key=lambda place: (*(-each for each in free[place]), place))
    for container in pod.demand.containers:
        cards.setdefault(container.name, sorted(emptiest[: max(container.demand.cards, 1)]))
    return cards, taken_on(pod.demand, cards)


def _part_known(pod: Pod, node: Node) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for container in pod.demand.containers:
        alone = Pod(
            pod.namespace,
            pod.name,
            pod.uid,
            pod.node,
            PodDemand((container,)),
            recorded=tuple(each for each in pod.recorded if each[0] == container.name),
            chosen=pod.chosen,
        )
        found |= known_cards(alone, node) or {}
    return found


def taken_by(plan: Plan) -> Taken:
    """Add up what a plan takes of each card."""
    taken: dict[int, Amounts] = {}
    for assignment in plan.values():
        for at, fresh in zip(assignment.cards, assignment.fresh, strict=True):
            taken[at] = taken.get(at, NOTHING).plus(fresh)
    return tuple((at, *amounts) for at, amounts in sorted(taken.items()))
