"""What a request for placement finds: the cards, what is free of them, what was planned.

Reads the record for the container that is asking and those after it, and returns what is to be
found for each.
"""

from collections.abc import Callable, Mapping

from agent.allocator.free_places import free_places, left_over, within_reach
from agent.allocator.interfaces import ContainerRef
from agent.allocator.placement_request import Assumptions, PlacementRequest
from agent.allocator.slots import DeviceTable, per_card
from agent.allocator.snapshot import AllocationSnapshot
from contract.demand import ContainerDemand
from contract.resource import Resource, count_of
from placement.capacity import CardState, Need, need_of, why_not
from placement.search import Capacity, Plan, Step


class RequestView:
    """What one request finds of its node's cards, by the record."""

    def __init__(
        self,
        request: PlacementRequest,
        *,
        table: DeviceTable,
        record: AllocationSnapshot,
        unhealthy: Callable[[str], str],
    ) -> None:
        """Read *record* for *request*.

        Args:
            request: the container to place.
            table: the node's device IDs.
            record: who holds what.
            unhealthy: why a card, by UUID, may not be given out; empty when it may.
        """
        self._request = request
        self._pod = request.ref.pod
        self._resource = request.resource
        self._table = table
        self._record = record
        self.offered = within_reach(request.ref, request.resource, request.available, record)
        self._offer = table.count(request.resource, self.offered)
        wishes = request.constraints.wishes
        self._barred = {
            card.uuid: (unhealthy(card.uuid), wishes.excludes(model=card.model, uuid=card.uuid))
            for card in table.inventory.cards
        }

    def lacking(self, container: ContainerDemand) -> frozenset[Resource]:
        """Return what a container asks for and does not hold."""
        ref = ContainerRef(self._pod, container.name)
        return frozenset(
            each
            for each in Resource
            if count_of(container.demand, each) and self._record.holding(ref, each) is None
        )

    def step(self, container: ContainerDemand) -> Step:
        """Return what is to be found for a container; the one that is asking always asks."""
        asking = container.name == self._request.ref.container
        lacking = self.lacking(container) | (frozenset({self._resource}) if asking else frozenset())
        need = need_of(container.demand)
        held = {
            each: holding
            for each in Resource
            if each not in lacking
            and (holding := self._record.holding(ContainerRef(self._pod, container.name), each))
        }
        # Given out already: it need not fit again, and the rest must follow it.
        need = Need(need.demand, {**need.per_card, **dict.fromkeys(held, 0)})
        fixed = self._table.in_order(
            slot.card for each, holding in held.items() for slot in self._table.read(each, holding)
        )
        planned = (self._request.plan or {}).get(container.name) if asking else None
        if planned is not None and fixed and set(fixed) <= set(planned.cards):
            fixed = planned.cards
        return Step(
            container,
            need,
            lacking,
            fixed,
            self._table.in_order(slot.card for slot in self._request.must) if asking else (),
            (self._resource, self._offer) if asking else None,
            self._chosen(container),
            self._request.constraints.strict,
            self._request.constraints.wishes.link,
        )

    def _chosen(self, container: ContainerDemand) -> tuple[str, ...]:
        """Return the cards that a scheduler chose; one that is not there by its number."""
        by_index = {card.index: card.uuid for card in self._table.inventory.cards}
        indices = self._request.constraints.chosen.get(container.name, ())
        return tuple(by_index.get(each, f"card {each}") for each in indices)

    def planned(self, step: Step) -> Plan | None:
        """Return the plan, if it has cards for the container and the kubelet offers that."""
        plan = self._request.plan
        planned = plan.get(step.container.name) if plan else None
        if plan is None or planned is None:
            return None
        ref, others = ContainerRef(self._pod, step.container.name), (self._resource.other,)
        if self._record.holding(ref, self._resource) is not None:
            return None  # a kubelet that died serves it again: what was planned is over
        cards, bound = planned.cards, {*step.fixed, *step.must}
        for other in step.lacking.intersection(others):
            bound |= left_over(self._pod, other, self._record, self._table).keys()
        need = Need(step.need.demand, {**step.need.per_card, **dict.fromkeys(others, 0)})
        states = {state.uuid: state for state in self._states({})}
        # Of a pod whose spec nobody knows, an earlier call may have shown less.
        fits = len(cards) == step.need.demand.cards
        fits = fits and all(card in states and not why_not(need, states[card]) for card in cards)
        return plan if fits and bound <= {*cards} else None

    def capacities(self, assumptions: Assumptions, *, alone: bool) -> list[Capacity]:
        """Return the cards as the pod finds them.

        Args:
            assumptions: what may be occupied, though the record has it free.
            alone: only the container that is asking is to be placed: of the resource that it
                asks for, what the kubelet offers is all that counts.
        """
        free: dict[Resource, Mapping[str, int]] = {}
        left: dict[Resource, Mapping[str, int]] = {}
        must = per_card(self._request.must)
        for each in Resource:
            kept = assumptions.reserved.get(each, {})
            if each is self._resource:  # the kubelet has said what there is, and what it hands on
                handed_on = {} if alone else must
                free[each] = {
                    card: max(n - handed_on.get(card, 0) - kept.get(card, 0), 0)
                    for card, n in self._offer.items()
                }
                left[each] = must
            else:
                missing = assumptions.withheld.get(each, {})
                more = assumptions.doubtful.get(each, {})
                found = free_places(self._record, self._table, each)
                free[each] = {
                    card: max(n - missing.get(card, 0) - kept.get(card, 0) + more.get(card, 0), 0)
                    for card, n in found.items()
                }
                left[each] = left_over(self._pod, each, self._record, self._table)
        return [
            Capacity(
                state,
                {each: left[each][state.uuid] for each in Resource if left[each].get(state.uuid)},
            )
            for state in self._states(free)
        ]

    def _states(self, free: Mapping[Resource, Mapping[str, int]]) -> list[CardState]:
        """Return the cards with what is *free*, or offered where that is not told."""
        return [
            CardState(
                card.uuid,
                card.index,
                {each: free.get(each, self._offer).get(card.uuid, 0) for each in Resource},
                {each: self._table.places(each, card) for each in Resource},
                *self._barred[card.uuid],
            )
            for card in self._table.inventory.cards
        ]
