"""One node at one moment: its cards, which pods hold what of them, and what is free. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind
from contract.inventory import NOTHING, Amounts
from contract.resource import Resource
from placement.cluster.holdings import NodeSnapshot, known_cards
from placement.cluster.node_allocations import NodeAllocations
from placement.cluster.nodes import Problem
from placement.cluster.pods import Pod
from placement.held import HeldAmounts, Taken
from view.model.nodes import NodeFacts
from view.model.reports import Source


@dataclass(frozen=True, slots=True)
class Held:
    """What one pod holds.

    Attributes:
        pod: the pod.
        cards: container and its cards, by their places.
        sources: container and how its cards are known.
        taken: places of each card; all blocks of whole cards, of which the kubelet may
            count fewer, and yet nobody else can have one.
    """

    pod: Pod
    cards: Mapping[str, Sequence[int]]
    sources: Mapping[str, Source]
    taken: Taken

    def parts(self) -> list[tuple[str, int, int, int]]:
        """Divide what the pod holds among its containers.

        What an ordinary init container has handed on (fact K7) is counted where it is now.

        Returns:
            Container, place of the card, cores, blocks; the sums are those of :attr:`taken`.
        """
        containers = self.pod.demand.containers
        if len(containers) == len(self.taken) == 1:  # nearly all
            place, cores, blocks = self.taken[0]
            return [(containers[0].name, place, cores, blocks)]
        left = {place: [cores, blocks] for place, cores, blocks in self.taken}
        last_first = sorted(containers, key=lambda each: each.kind is ContainerKind.INIT)
        found: dict[tuple[str, int], list[int]] = {}
        for container in last_first:
            places = self.cards.get(container.name, ())
            sizes = [left.get(place, (0, 0))[1] for place in places]
            for place, *quota in quotas(container, places, sizes):
                row = left.get(place, [0, 0])
                given = [min(wanted, there) for wanted, there in zip(quota, row, strict=True)]
                left[place] = [there - part for there, part in zip(row, given, strict=True)]
                if any(given):
                    found[container.name, place] = given
        return [(name, place, *given) for (name, place), given in found.items()]  # type: ignore[misc]  # two counts


def quotas(
    container: ContainerDemand, places: Sequence[int], sizes: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return what a container has of each of its cards: place, cores and blocks.

    Of whole cards it has all memory: their *sizes* in blocks.
    """
    asked = container.demand
    cores = asked.cores if asked.is_share else CORES_PER_CARD
    memory = asked.per_card(Resource.MEMORY, len(places)) if asked.is_share else tuple(sizes)
    return [(place, cores, blocks) for place, blocks in zip(places, memory, strict=False)]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A node and who holds what of it.

    Attributes:
        facts: the node.
        held: by pods, sorted by namespace and name.
        unseen: of each card, what the agent counts as held by pods not seen.
        view: the node as placing sees it.
    """

    facts: NodeFacts
    held: tuple[Held, ...]
    unseen: tuple[Amounts, ...]
    view: NodeSnapshot

    def used(self) -> Sequence[Amounts]:
        """Return what is held of each card, which may be more than there is."""
        return _used(self.facts, self.held, self.unseen).held

    def view_without(self, uids: AbstractSet[str]) -> NodeSnapshot:
        """Return the node with what would be free if some pods held nothing."""
        held = [each for each in self.held if each.pod.uid not in uids]
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
        problem = Problem.NONE if connected and node.problem is Problem.AWAY else node.problem
        return NodeSnapshot(replace(node.with_cards(cards), problem=problem), self.view.free)

    def reserve(self, more: Sequence[Amounts]) -> "Occupancy":
        """Return the node as if more were held of each card, by pods that do not exist yet."""
        unseen = tuple(map(Amounts.plus, self.unseen or (NOTHING,) * len(more), more))
        return replace(self, unseen=unseen, view=_view(self.facts, self.held, unseen))


def observe(room: NodeAllocations, facts: NodeFacts, *, partial: bool) -> Occupancy:
    """Work out who holds what of a node.

    Where the pods that are seen are *partial*, what the agent counts as held counts too.
    """
    node, simulated = room.node, room.simulated()
    held = []
    for pod in sorted(room.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        taken = room.holding(pod.uid)
        if taken is not None:
            cards: Mapping[str, Sequence[int]] = known_cards(pod, node) or {}
        elif pod.uid in simulated:
            cards, taken = simulated[pod.uid]
        else:
            continue
        sources = _sources(pod, cards, sure=pod.uid not in simulated)
        held.append(Held(pod, cards, sources, _with_memory(taken, pod, cards, node.sizes)))
    unseen: tuple[Amounts, ...] = ()
    if partial:
        rows = zip(node.sizes, facts.inventory.free, _used(facts, held, ()).held, strict=True)
        unseen = tuple(size.less(free).less(seen) for size, free, seen in rows)
    return Occupancy(facts, tuple(held), unseen, _view(facts, held, unseen))


def _used(facts: NodeFacts, held: Sequence[Held], unseen: Sequence[Amounts]) -> HeldAmounts:
    """Add up what is held of each card."""
    used = HeldAmounts.nothing_of(facts.placed.sizes)
    if unseen:
        used = HeldAmounts(used.sizes, tuple(unseen))
    for each in held:
        used = used.take(each.taken)
    return used


def _view(facts: NodeFacts, held: Sequence[Held], unseen: Sequence[Amounts]) -> NodeSnapshot:
    return NodeSnapshot(facts.placed, _used(facts, held, unseen).free)


def _with_memory(
    taken: Taken, pod: Pod, cards: Mapping[str, Sequence[int]], sizes: Sequence[Amounts]
) -> Taken:
    """Count all memory of whole cards."""
    whole = {
        place
        for container in pod.demand.containers
        if not container.demand.is_share
        for place in cards.get(container.name, ())
    }
    return tuple(
        (place, cores, sizes[place].memory)
        if place in whole and cores >= CORES_PER_CARD
        else (place, cores, blocks)
        for place, cores, blocks in taken
    )


def _sources(pod: Pod, cards: Mapping[str, Sequence[int]], *, sure: bool) -> dict[str, Source]:
    recorded, chosen = dict(pod.recorded), dict(pod.chosen)
    found = {}
    for container in pod.demand.containers:
        if container.name not in cards:
            continue
        if container.name in recorded:
            found[container.name] = Source.RECORDED
        elif container.name in chosen and (
            sure or len(chosen[container.name]) == container.demand.cards
        ):
            found[container.name] = Source.CHOSEN
        else:
            found[container.name] = Source.EXPECTED
    return found
