"""One node at one moment: its cards, which pods hold what of them, and what is free. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated

from contract.demand import CORES_PER_CARD, ContainerKind
from contract.inventory import NOTHING, Amounts
from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import NodeSnapshot, PodCards, held_by_container, known_cards
from placement.cluster.node_allocations import NodeAllocations
from placement.cluster.nodes import Problem
from placement.held import HeldAmounts, HeldByPosition, add_up
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from view.model.nodes import NodeFacts

CORDONED = "the node is cordoned"


@dataclass(frozen=True, slots=True)
class PodHolding:
    """What one pod holds."""

    pod: Annotated[PodInfo, "the pod."]
    cards: Annotated[
        PodCards, "of each container its cards, how they are known, and which are lost."
    ]
    parts: Annotated[
        Sequence[tuple[str, int, Amounts]],
        "container, position of the card, and how much. What an ordinary init container has "
        "left counts with who has taken it since (fact K7). Of whole cards all blocks count: "
        "the kubelet may count fewer, and yet nobody else can have one.",
    ]
    taken: Annotated[HeldByPosition, "of each card the sum of these."]


def _holding(pod: PodInfo, cards: PodCards, sizes: Sequence[Amounts]) -> PodHolding:
    """Divide what a pod holds among its containers, those that keep it first."""
    held = held_by_container(pod.demand, cards)
    taken = dict(add_up((at, amounts) for (_, at), amounts in held.items()))
    found = []
    inits_last = sorted(pod.demand.containers, key=lambda each: each.kind is ContainerKind.INIT)
    for container in inits_last:
        for at in cards[container.name].positions if container.name in cards else ():
            mine = held[container.name, at]
            if not container.demand.is_share and taken[at].cores >= CORES_PER_CARD:
                rest = Amounts(0, max(sizes[at].memory - taken[at].memory, 0))
                mine, taken[at] = mine.plus(rest), taken[at].plus(rest)
            if any(mine):
                found.append((container.name, at, mine))
    return PodHolding(pod, cards, found, taken)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A node and who holds what of it."""

    facts: Annotated[NodeFacts, "the node."]
    held: Annotated[
        Mapping[str, PodHolding], "by pods, by their UID; sorted by namespace and name."
    ]
    unseen: Annotated[
        tuple[Amounts, ...], "of each card, what the agent counts as held by pods not seen."
    ]
    view: Annotated[NodeSnapshot, "the node as placing sees it."]

    def refusal(self, shape: PodClass, view: NodeSnapshot | None = None) -> Unschedulable | None:
        """Return why a pod does not fit, on the node as it is or as *view* has it; or ``None``.

        By its cards, and by whether it is cordoned; of taints and affinity the scheduler knows.
        """
        if self.facts.cordoned:
            return Unschedulable(CORDONED, unresolvable=True)
        answer = check(shape, view or self.view)
        return answer if isinstance(answer, Unschedulable) else None

    def used(self) -> Sequence[Amounts]:
        """Return what is held of each card, which may be more than there is."""
        return _used(self.facts, self.held.values(), self.unseen).held

    def view_without(self, uids: AbstractSet[str]) -> NodeSnapshot:
        """Return the node with what would be free if some pods held nothing."""
        held = [each for uid, each in self.held.items() if uid not in uids]
        return self.view if len(held) == len(self.held) else _view(self.facts, held, self.unseen)

    def view_as_if(
        self, *, healthy: AbstractSet[int] = frozenset(), connected: bool = False
    ) -> NodeSnapshot:
        """Return the node as it would be."""
        node = self.view.node
        cards = tuple(
            replace(card, unhealthy="", cordoned=False) if place in healthy else card
            for place, card in enumerate(node.cards)
        )
        problem = (
            Problem.NONE
            if connected and node.problem is Problem.AGENT_DISCONNECTED
            else node.problem
        )
        return NodeSnapshot(replace(node.with_cards(cards), problem=problem), self.view.free)

    def reserve(self, more: HeldByPosition) -> "Occupancy":
        """Return the node as if more were held of its cards, by pods that do not exist yet."""
        unseen = HeldAmounts(self.facts.placed.sizes, self.unseen).add(more).held
        return replace(self, unseen=unseen, view=_view(self.facts, self.held.values(), unseen))


def occupancy_of(
    facts: NodeFacts, pods: Iterable[PodInfo], policy: Policy, *, partial: bool
) -> Occupancy:
    """Work out who holds what of a node, of the pods that are bound to it.

    Where the pods that are seen are *partial*, what the agent counts as held counts too.
    """
    node = facts.placed
    allocations = NodeAllocations(node.name, policy)
    allocations.set_node(node)
    living = sorted((pod for pod in pods if not pod.terminal), key=lambda pod: pod.id)
    for pod in living:
        allocations.add_pod(pod)
    simulated = allocations.simulate()
    held = {}
    for pod in living:
        cards = simulated.get(pod.id.uid)
        if cards is None and node.cards:
            cards = known_cards(pod, node)
        if cards is not None:
            held[pod.id.uid] = _holding(pod, cards, node.sizes)
    unseen = (NOTHING,) * len(node.cards)
    if partial:
        seen = _used(facts, held.values(), unseen).held
        rows = zip(node.sizes, facts.inventory.free, seen, strict=True)
        unseen = tuple(size.minus(free).minus(known) for size, free, known in rows)
    return Occupancy(facts, held, unseen, _view(facts, held.values(), unseen))


def _used(facts: NodeFacts, held: Iterable[PodHolding], unseen: tuple[Amounts, ...]) -> HeldAmounts:
    """Add up what is held of each card."""
    used = HeldAmounts(facts.placed.sizes, unseen)
    for each in held:
        used = used.add(each.taken)
    return used


def _view(
    facts: NodeFacts, held: Iterable[PodHolding], unseen: tuple[Amounts, ...]
) -> NodeSnapshot:
    return NodeSnapshot(facts.placed, _used(facts, held, unseen).free)
