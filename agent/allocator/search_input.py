"""What a request for placement finds: the cards, what is free of them, what was planned.

Reads the snapshot for the container that is asking and those after it, and returns what is to be
found for each. Cards are named by their positions in the node's inventory.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from agent.allocator.interfaces import ContainerRef
from agent.allocator.slots import DeviceTable, Slot
from agent.allocator.snapshot import AllocationSnapshot
from contract.demand import ContainerDemand, PodDemand
from contract.inventory import Amounts
from contract.resource import Resource, count_of
from contract.wishes import NO_WISHES, Wishes
from placement.capacity import CardSet, need_of, shortfall
from placement.pods import PodId
from placement.scoring import Policy
from placement.search import ContainerStep, Plan, bound_cards
from placement.topology import Links

CORE, MEMORY = Resource.CORE, Resource.MEMORY

SlotCounts: TypeAlias = Mapping[Resource, Mapping[str, int]]
"""Slots by card, by resource."""


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """What the pod's author and a scheduler want of a placement.

    Attributes:
        wishes: the pod's author's.
        chosen: card indices that a scheduler chose, by container name.
        strict: whether a choice that does not fit is refused instead of replaced.
    """

    wishes: Wishes = NO_WISHES
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions about free slots, where the snapshot may be wrong.

    Attributes:
        withheld: slots that the kubelet may count as used, though nobody holds them (K31).
        reserved: slots that other pods must have on cards where they have some already.
        doubtful: slots of pods that are not listed and may have ended.
    """

    withheld: SlotCounts = field(default_factory=dict)
    reserved: SlotCounts = field(default_factory=dict)
    doubtful: SlotCounts = field(default_factory=dict)

    def relaxed(self) -> "Iterator[Assumptions]":
        """Yield from the strictest to the loosest; the last counts *doubtful* slots as free."""
        yield Assumptions(withheld=self.withheld, reserved=self.reserved)
        yield Assumptions(withheld=self.withheld)
        yield Assumptions()
        yield Assumptions(doubtful=self.doubtful)


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One container to place, so that its pod's later ones find slots too.

    Attributes:
        ref: whose slots these will be.
        container: what it asks for.
        pod: its whole pod, to look ahead.
        resource: which resource is asked for.
        policy: which card a share prefers.
        available: the IDs the kubelet offers; a slot outside them is never chosen.
        must: slots the kubelet hands on (``must_include``).
        plan: what was planned when an earlier call of its pod was answered.
        assumptions: where the snapshot may be wrong.
        constraints: what the pod's author and a scheduler want.
        sole_candidate: no other container may be asking. With rivals, what a later container lacks
            is no reason to refuse.
    """

    ref: ContainerRef
    container: ContainerDemand
    pod: PodDemand
    resource: Resource
    policy: Policy
    available: AbstractSet[str]
    must: Sequence[Slot] = ()
    plan: Plan | None = None
    assumptions: Assumptions = Assumptions()
    constraints: PlacementConstraints = PlacementConstraints()
    sole_candidate: bool = True


class SearchInput:
    """What one request finds of its node's cards, by the snapshot."""

    def __init__(
        self,
        request: PlacementRequest,
        *,
        table: DeviceTable,
        snapshot: AllocationSnapshot,
        links: Links,
        unhealthy: Callable[[str], str],
    ) -> None:
        """Read *snapshot* for *request*.

        Args:
            request: the container to place.
            table: the node's device IDs.
            snapshot: who holds what.
            links: how the node's cards are connected.
            unhealthy: why a card, by UUID, may not be given out; empty when it may.
        """
        self._request = request
        self._pod = request.ref.pod
        self._resource = request.resource
        self._table = table
        self._snapshot = snapshot
        wishes, cards = request.constraints.wishes, table.inventory.cards
        self.cards = CardSet(
            [card.uuid for card in cards],
            [card.size(table.block) for card in cards],
            links,
            [unhealthy(card.uuid) for card in cards],
            [wishes.excludes(model=card.model, uuid=card.uuid) for card in cards],
        )
        # What the kubelet offers the container, less what another holds (K15).
        taken = snapshot.taken(request.ref, request.resource, request.available)
        self.offered = request.available - taken
        self._offer = self._per_card(table.count(request.resource, self.offered))
        self._must = self._per_card(Counter(each.card for each in request.must))

    def lacking(self, container: ContainerDemand) -> frozenset[Resource]:
        """Return what a container asks for and does not hold."""
        ref = ContainerRef(self._pod, container.name)
        return frozenset(
            each
            for each in Resource
            if count_of(container.demand, each) and self._snapshot.holding(ref, each) is None
        )

    def step(self, container: ContainerDemand) -> ContainerStep:
        """Return what is to be found for a container; the one that is asking always asks."""
        request = self._request
        asking = container.name == request.ref.container
        lacking = self.lacking(container) | (frozenset({self._resource}) if asking else frozenset())
        need = need_of(container.demand)
        ref = ContainerRef(self._pod, container.name)
        held = {
            each: holding
            for each in Resource
            if each not in lacking and (holding := self._snapshot.holding(ref, each))
        }
        # Given out already: it need not fit again, and the rest must follow it.
        wanted = need.per_card
        need = need._replace(
            per_card=Amounts(
                0 if CORE in held else wanted.cores, 0 if MEMORY in held else wanted.memory
            )
        )
        fixed = self._table.inventory.positions(
            slot.card for each, holding in held.items() for slot in self._table.read(each, holding)
        )
        planned = (request.plan or {}).get(container.name) if asking else None
        if planned is not None and fixed and set(fixed) <= set(planned.cards):
            fixed = planned.cards
        return ContainerStep(
            container,
            need,
            lacking,
            fixed,
            self._table.inventory.positions(slot.card for slot in request.must) if asking else (),
            (self._resource, self._offer) if asking else None,
            self._chosen(container),
            request.constraints.strict,
            request.constraints.wishes.link,
        )

    def _chosen(self, container: ContainerDemand) -> tuple[str, ...]:
        """Return the cards that a scheduler chose; one that is not there by its number."""
        by_index = {card.index: card.uuid for card in self._table.inventory.cards}
        indices = self._request.constraints.chosen.get(container.name, ())
        return tuple(by_index.get(each, f"card {each}") for each in indices)

    def planned(self, step: ContainerStep) -> Plan | None:
        """Return the plan, if it has cards for the container and the kubelet offers that."""
        plan = self._request.plan
        planned = plan.get(step.container.name) if plan else None
        if plan is None or planned is None:
            return None
        ref = ContainerRef(self._pod, step.container.name)
        if self._snapshot.holding(ref, self._resource) is not None:
            return None  # a kubelet that died serves it again: what was planned is over
        cards, bound = planned.cards, {*step.fixed, *bound_cards(step, self.reusable)}
        wanted = count_of(step.need.per_card, self._resource)
        need = step.need._replace(per_card=_amounts(self._resource, wanted, 0))
        rows = [_amounts(self._resource, offered, 0) for offered in self._offer]
        # Of a pod whose spec nobody knows, an earlier call may have shown less.
        fits = len(cards) == step.need.demand.cards and all(
            not shortfall(need, self.cards, at, rows[at]) for at in cards
        )
        return plan if fits and bound <= {*cards} else None

    @cached_property
    def reusable(self) -> list[Amounts]:
        """What the pod's ordinary init containers leave to the next container (K7)."""
        # Of what is asked for, the kubelet has said what it hands on.
        left = self._per_card(
            reusable_slots(self._pod, self._resource.other, self._snapshot, self._table)
        )
        return [
            _amounts(self._resource, must, more)
            for must, more in zip(self._must, left, strict=True)
        ]

    def free(self, assumptions: Assumptions, *, alone: bool) -> list[Amounts]:
        """Return what is free of each card.

        Args:
            assumptions: what may be occupied, though the snapshot has it free.
            alone: only the container that is asking is to be placed: of the resource that it
                asks for, what the kubelet offers is all that counts.
        """
        resource, other = self._resource, self._resource.other
        kept, kept_of_other = (
            self._per_card(assumptions.reserved.get(each, {})) for each in (resource, other)
        )
        withheld = self._per_card(assumptions.withheld.get(other, {}))
        doubtful = self._per_card(assumptions.doubtful.get(other, {}))
        found = self._per_card(free_slots(self._snapshot, self._table, other))
        handed_on = [0] * len(found) if alone else self._must
        return [
            _amounts(
                resource,
                max(self._offer[at] - handed_on[at] - kept[at], 0),
                max(found[at] - withheld[at] - kept_of_other[at] + doubtful[at], 0),
            )
            for at in range(len(found))
        ]

    def _per_card(self, counts: Mapping[str, int]) -> list[int]:
        """Return counts by card as counts by position."""
        return [counts.get(uuid, 0) for uuid in self.cards.names]


def _amounts(resource: Resource, count: int, of_other: int) -> Amounts:
    return Amounts(count, of_other) if resource is CORE else Amounts(of_other, count)


def free_slots(
    snapshot: AllocationSnapshot, table: DeviceTable, resource: Resource
) -> dict[str, int]:
    """Count the slots of each card that nobody holds."""
    held = table.count(resource, snapshot.held[resource])
    return {
        card.uuid: table.places(resource, card) - held.get(card.uuid, 0)
        for card in table.inventory.cards
    }


def reusable_slots(
    pod: PodId, resource: Resource, snapshot: AllocationSnapshot, table: DeviceTable
) -> Mapping[str, int]:
    """Count the slots of each card that the pod's ordinary init containers have left over.

    The kubelet makes the next container take them (fact K7), asked for or not.
    """
    return table.count(resource, snapshot.reusable(pod, resource))


def needed_after_restart(snapshot: AllocationSnapshot, table: DeviceTable) -> SlotCounts:
    """Count, for each card, the slots needed by pods that a restarted kubelet has yet to admit.

    What their ordinary init containers have left over the next one must take (K7, K11), so it has
    to be on the same card.
    """
    found = {each: Counter[str]() for each in Resource}
    for pod in snapshot.changing:
        container = None if pod.listed is not None or pod.ended else pod.find_lacking()
        if container is None or not container.demand.is_share:
            continue
        left = {each: reusable_slots(pod.id, each, snapshot, table) for each in Resource}
        for card in {card for counts in left.values() for card in counts}:
            for each in Resource:
                more = count_of(container.demand, each) - left[each].get(card, 0)
                found[each][card] += max(more, 0)
    return found
