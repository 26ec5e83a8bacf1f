"""The input of the search for a placement: cards, free slots, and the steps to place.

It is read from the snapshot, for the target and the later containers of its pod. Cards are given by
their positions in the node's inventory.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from agent.allocator.slots import DeviceTable, Slot
from agent.allocator.snapshot import AllocationSnapshot
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.demand import ContainerDemand, PodDemand
from contract.inventory import Amounts
from contract.resource import Resource
from contract.reusable import held_on_cards
from contract.text import format_count
from contract.wishes import NO_WISHES, Wishes
from placement.capacity import CardSet, is_for_shares, need_of, shortfall
from placement.errors import NoPlacement
from placement.scoring import Policy
from placement.search import ContainerStep, Plan, bound_cards
from placement.topology import Links

CORE, MEMORY = Resource.CORE, Resource.MEMORY

SlotCounts: TypeAlias = Mapping[Resource, Mapping[str, int]]
"""Slots by card, by resource."""


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """The constraints that the pod's author and a scheduler set.

    Attributes:
        wishes: those of the pod's author.
        chosen: card indices that a scheduler chose, by container name.
        strict: whether a choice that does not fit is refused instead of replaced.
    """

    wishes: Wishes = NO_WISHES
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions about slots whose state in the snapshot is uncertain.

    Attributes:
        withheld: slots that the kubelet may count as used, though no container holds them (K31).
        reserved: slots that other pods need on cards of which they hold some already.
        doubtful: slots of unlisted pods, which may have ended.
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
    """One container to place, such that the later containers of its pod fit, too.

    Attributes:
        ref: the container.
        container: its request.
        pod: the request of its whole pod, to look ahead.
        resource: the requested resource.
        policy: which card a share prefers.
        available: the IDs that the kubelet offers; no other slot is chosen.
        must: slots that must be included: reusable ones (``must_include``).
        plan: the plan of an earlier call for its pod.
        assumptions: the uncertain slots.
        constraints: those of the pod's author and a scheduler.
        sole_candidate: whether no other container may be the target. With rivals a request is not
            refused because a later container would not fit.
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
    """The input of one search, from the snapshot."""

    def __init__(
        self,
        request: PlacementRequest,
        *,
        table: DeviceTable,
        snapshot: AllocationSnapshot,
        links: Links,
        withheld: Callable[[str], str],
    ) -> None:
        """Read *snapshot* for *request*; the rest is that of the placer."""
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
            [withheld(card.uuid) for card in cards],
            [wishes.excludes(model=card.model, uuid=card.uuid) for card in cards],
            frozenset([at for at, card in enumerate(cards) if is_for_shares(card, wishes)]),
        )
        # The slots that the kubelet offers, except those that another container holds (K15).
        taken = snapshot.taken(request.ref, request.resource, request.available)
        self.offered = request.available - taken
        self._offer = self._per_card(table.count(request.resource, self.offered))
        self._must = self._per_card(Counter(each.card for each in request.must))

    def lacking(self, container: ContainerDemand) -> frozenset[Resource]:
        """Return the requested resources of which a container holds no slots."""
        ref = ContainerRef(self._pod, container.name)
        return frozenset(
            each
            for each in Resource
            if each.count_in(container.demand) and self._snapshot.holding(ref, each) is None
        )

    def step(self, container: ContainerDemand) -> ContainerStep:
        """Return the step of the search for a container; the target always needs its resource."""
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
        # Slots that it holds already need not fit again; the other resource must be on their cards.
        wanted = need.per_card
        need = need._replace(
            per_card=Amounts(
                0 if CORE in held else wanted.cores, 0 if MEMORY in held else wanted.memory
            )
        )
        fixed = self._table.inventory.positions(
            slot.card for each, holding in held.items() for slot in self._table.read(each, holding)
        )
        if need.demand.is_share and 0 < len(fixed) < need.demand.cards:
            raise NoPlacement(  # these were chosen while its request was not known
                f"its share is divided over {need.demand.cards} cards, but it holds devices of "
                f"only {format_count(len(fixed), 'card')}"
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
            self._chosen(container),
            request.constraints.strict,
            request.constraints.wishes.link,
        )

    def _chosen(self, container: ContainerDemand) -> tuple[str, ...]:
        """Return the UUIDs of the cards that a scheduler chose; a missing card by its index."""
        by_index = {card.index: card.uuid for card in self._table.inventory.cards}
        indices = self._request.constraints.chosen.get(container.name, ())
        return tuple(by_index.get(each, f"card {each}") for each in indices)

    def planned(self, step: ContainerStep) -> Plan | None:
        """Return the plan, if it has cards for the container and the kubelet offers their slots."""
        plan = self._request.plan
        planned = plan.get(step.container.name) if plan else None
        if plan is None or planned is None:
            return None
        ref = ContainerRef(self._pod, step.container.name)
        if self._snapshot.holding(ref, self._resource) is not None:
            return None  # a restarted kubelet serves it again: the plan is not valid any more
        cards, bound = planned.cards, {*step.fixed, *bound_cards(step, self.reusable)}
        # If the pod is not in the API, an earlier call may have known a smaller request. And the
        # plan may have counted slots of the other resource as free that the kubelet may withhold.
        other, free = self._resource.other, self.free(self._request.assumptions)
        rows = [
            _amounts(self._resource, offered, other.count_in(left) + other.count_in(reusable))
            for offered, left, reusable in zip(self._offer, free, self.reusable, strict=True)
        ]
        fits = len(cards) == step.need.demand.cards and all(
            not shortfall(step.need, self.cards, at, rows[at]) for at in cards
        )
        return plan if fits and bound <= {*cards} else None

    @cached_property
    def reusable(self) -> list[Amounts]:
        """The reusable slots of the pod's ordinary init containers, by position (K7)."""
        # For the requested resource the call itself has them, as *must*.
        other = self._resource.other
        left = self._per_card(self._table.count(other, self._snapshot.reusable(self._pod, other)))
        return [
            _amounts(self._resource, must, more)
            for must, more in zip(self._must, left, strict=True)
        ]

    def free(self, assumptions: Assumptions) -> list[Amounts]:
        """Return the free amounts of each card: those that the kubelet offers of the resource."""
        resource, other = self._resource, self._resource.other
        kept, kept_of_other = (
            self._per_card(assumptions.reserved.get(each, {})) for each in (resource, other)
        )
        withheld = self._per_card(assumptions.withheld.get(other, {}))
        doubtful = self._per_card(assumptions.doubtful.get(other, {}))
        table = self._table
        held = self._per_card(table.count(other, self._snapshot.held[other]))
        claimed, of_other = (self._per_card(self._claimed[each]) for each in (resource, other))
        sizes = (table.slot_count(other, card) for card in table.inventory.cards)
        left = [size - of_other[at] for at, size in enumerate(sizes)]
        return [
            _amounts(
                resource,
                max(self._offer[at] - self._must[at] - kept[at] - claimed[at], 0),
                max(size - held[at] - withheld[at] - kept_of_other[at] + doubtful[at], 0),
            )
            for at, size in enumerate(left)
        ]

    @cached_property
    def _claimed(self) -> Mapping[Resource, Mapping[str, int]]:
        """What other pods hold by claims: the node was not drained before it got a device plugin.

        Neither ``List`` nor the checkpoint shows it. The opposite: ``agent.dra.claims``,
        ``served_by_plugin``.
        """
        found = {each: Counter[str]() for each in Resource}
        for info in self._snapshot.known.shown:
            claimed = {
                name: each.cards
                for name, each in info.annotated.items()
                if each.evidence is Evidence.CLAIM
            }
            if claimed and not info.terminal and info.id != self._pod:
                for (_, card), amounts in held_on_cards(info.demand, claimed).items():
                    for each in Resource:
                        found[each][card] += each.count_in(amounts)
        return found

    def _per_card(self, counts: Mapping[str, int]) -> list[int]:
        """Return counts by card as counts by position."""
        return [counts.get(uuid, 0) for uuid in self.cards.names]


def _amounts(resource: Resource, count: int, of_other: int) -> Amounts:
    return Amounts(count, of_other) if resource is CORE else Amounts(of_other, count)


def needed_after_restart(snapshot: AllocationSnapshot, table: DeviceTable) -> SlotCounts:
    """Count, for each card, the slots needed by pods that a restarted kubelet has yet to admit.

    Their next container must take the reusable slots of their init containers (K7, K11), so its
    other slots must be on the same card.
    """
    found = {each: Counter[str]() for each in Resource}
    for pod in snapshot.changing:
        container = None if pod.listed is not None or pod.ended else pod.find_lacking()
        if container is None or not container.demand.is_share:
            continue
        left = {each: table.count(each, snapshot.reusable(pod.id, each)) for each in Resource}
        for card in {card for counts in left.values() for card in counts}:
            for each in Resource:
                more = container.demand.most_per_card(each) - left[each].get(card, 0)
                found[each][card] += max(more, 0)
    return found
