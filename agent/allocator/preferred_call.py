"""``GetPreferredAllocation``: find who is asking, place it, and reserve its places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.allocator.model.pod_view import PodView
from agent.allocator.model.ports import DecisionLog
from agent.allocator.model.tickets import DeviceTable, Ticket
from agent.allocator.node_state import NodeState
from agent.allocator.placement_request import Assumptions, Constraints, PlacementRequest
from agent.allocator.placer import Placement, Placer, at_least
from agent.allocator.reservations import Reservation, ref_of
from agent.allocator.resolver.resolve import Resolution
from agent.allocator.settler import Call, Settler
from contract.allocation import Evidence
from contract.demand import PodDemand
from contract.resource import Resource
from placement.scoring import Policy


@dataclass(frozen=True, slots=True)
class _Placed:
    """Places found for a container, and reserved for it."""

    reservation: Reservation
    placement: Placement
    ids: frozenset[str]


class PreferredCall:
    """Answers preferred calls."""

    def __init__(  # noqa: PLR0913 -- collaborators and settings, by keyword
        self,
        *,
        state: NodeState,
        table: DeviceTable,
        settler: Settler,
        placer: Placer,
        decision_log: DecisionLog,
        unhealthy: Callable[[str], str],
        policy: Policy,
        strict: bool,
    ) -> None:
        """Place on *state*; the settings are those of the allocator."""
        self._state = state
        self._table = table
        self._settler = settler
        self._placer = placer
        self._decision_log = decision_log
        self._unhealthy = unhealthy
        self._policy = policy
        self._strict = strict

    def answer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Return the device IDs of the places found.

        Raises:
            Refusal: nobody can be asking this, or nothing fits.
        """
        call = Call("prefer", resource, size, offered=frozenset(available), must=must)
        with self._settler.refusing(call):
            tickets = self._table.read(resource, must)
            placed = self._settler.settle(
                call, lambda asker, view: self._place(call, tickets, asker, view)
            )
        placement, asker = placed.placement, placed.reservation.resolution
        ref = ref_of(asker)
        if placement.replaced:
            self._decision_log.replaced(ref, placement.replaced, placement.cards)
        if placed.reservation.view is None:
            self._decision_log.unadvised(ref, resource, placed.ids)
        self._decision_log.decided("prefer", ref, resource, asker.evidence, placed.ids)
        return [str(ticket) for ticket in placement.tickets]

    def _place(
        self, call: Call, must: Sequence[Ticket], asker: Resolution, view: PodView | None
    ) -> _Placed:
        """Find places for a container that may be asking, and reserve them.

        Raises:
            Refusal: nothing fits.
        """
        state = self._state
        state.offers.offered(call.resource, call.offered, state.ledger, self._unhealthy)
        placement = self._placer.place(self._request(call, must, asker, view), state.ledger)
        ids = frozenset(str(ticket) for ticket in placement.tickets)
        reservation = Reservation(asker, view)
        state.reservations.reserve(call.resource, ids, reservation, placement.plan)
        return _Placed(reservation, placement, ids)

    def _request(
        self, call: Call, must: Sequence[Ticket], asker: Resolution, view: PodView | None
    ) -> PlacementRequest:
        """Return all that the placement depends on."""
        state, container = self._state, asker.container
        if view is None:
            container = at_least(container, self._table)
        return PlacementRequest(
            ref_of(asker),
            container,
            view.demand if view is not None else PodDemand((container,)),
            call.resource,
            self._policy_for(view),
            call.offered,
            must,
            plan=state.reservations.plan(asker.pod),
            assumptions=Assumptions(
                tuple(state.pod_index.hidden),
                state.reservations.reserved(asker, live=state.pod_index.live, ledger=state.ledger),
                state.offers.withheld(call.resource, state.ledger),
            ),
            constraints=self._constraints(view),
            certain=asker.evidence is not Evidence.ORDER,
        )

    def _policy_for(self, view: PodView | None) -> Policy:
        """Return what the pod's author wishes, else what the node's admin has set."""
        if view is None:
            # Of a pod that only the kubelet knows, half of what it asks for is yet to come:
            # that fits best where most is free.
            return Policy.SPREAD
        return Policy(view.wishes.policy) if view.wishes.policy else self._policy

    def _constraints(self, view: PodView | None) -> Constraints:
        """Return what the pod's author and a scheduler want."""
        if view is None:
            return Constraints()
        return Constraints(view.wishes, view.chosen, self._strict)
