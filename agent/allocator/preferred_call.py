"""``GetPreferredAllocation``: find which container is asking, and choose its places."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.allocator.model.ports import DecisionLog
from agent.allocator.model.tickets import DeviceTable, Ticket
from agent.allocator.node_state import NodeState
from agent.allocator.placer import Placement, Placer, at_least
from agent.allocator.resolver import Resolution
from agent.allocator.search_input import (
    Assumptions,
    PlacementConstraints,
    PlacementRequest,
    needed_after_restart,
)
from agent.allocator.settler import Call, Settler
from contract.demand import PodDemand
from contract.resource import Resource
from placement.scoring import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferredCall:
    """Answers preferred calls; the settings are those of the allocator."""

    state: NodeState
    table: DeviceTable
    settler: Settler
    placer: Placer
    decision_log: DecisionLog
    policy: Policy
    strict: bool

    def answer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Return the device IDs of the places found.

        Raises:
            Refusal: no container can be asking this, or nothing fits.
        """
        call = Call("prefer", resource, size, offered=frozenset(available), named=must)
        with self.settler.refusing(call):
            tickets = self.table.read(resource, must)
            asker, placement = self.settler.settle(
                call, lambda asker: (asker, self._place(call, tickets, asker))
            )
            with self.state as state:
                state.save()
        ids = [str(ticket) for ticket in placement.tickets]
        if placement.replaced:
            self.decision_log.replaced(asker.ref, placement.replaced, placement.cards)
        if asker.view is None:
            self.decision_log.unadvised(asker.ref, resource, ids)
        self.decision_log.decided("prefer", asker.ref, resource, asker.evidence, ids)
        return ids

    def _place(self, call: Call, must: Sequence[Ticket], asker: Resolution) -> Placement:
        """Find places for a container that may be asking, and reserve them for it.

        Raises:
            PlacementError: nothing fits.
        """
        state = self.state
        placement = self.placer.place(self._request(call, must, asker), state.record)
        ids = frozenset(str(ticket) for ticket in placement.tickets)
        state.answer(asker, call.resource, ids, allocated=False)
        state.keep_plan(asker.pod, placement.plan)
        return placement

    def _request(self, call: Call, must: Sequence[Ticket], asker: Resolution) -> PlacementRequest:
        """Return all that the placement depends on."""
        view, container = asker.view, asker.container
        if view is None:
            container = at_least(container, self.table)
        return PlacementRequest(
            asker.ref,
            container,
            view.demand if view is not None else PodDemand((container,)),
            call.resource,
            self._policy_for(asker),
            call.offered,
            must,
            plan=self.state.plan(asker.pod),
            assumptions=self._assumptions(call),
            constraints=PlacementConstraints(view.wishes, view.chosen, self.strict)
            if view is not None
            else PlacementConstraints(),
            certain=not asker.rivals,
        )

    def _assumptions(self, call: Call) -> Assumptions:
        """Return what the kubelet may withhold, and what may be free all the same."""
        record, others = self.state.record, call.resource.others
        withheld = {each: record.withheld(call.resource, call.offered, each) for each in others}
        return Assumptions(
            withheld={each: self.table.count(each, ids) for each, ids in withheld.items()},
            reserved=needed_after_restart(record, self.table),
            doubtful={each: self.table.count(each, record.doubtful(each)) for each in others},
        )

    def _policy_for(self, asker: Resolution) -> Policy:
        """Return what the pod's author wishes, else what the node's admin has set."""
        if asker.view is None:
            # Of a pod that only the kubelet knows, half of what it asks for is yet to come:
            # that fits best where most is free.
            return Policy.SPREAD
        return Policy(asker.view.wishes.policy) if asker.view.wishes.policy else self.policy
