"""``Allocate``: check the kubelet's choice, and assign its places to whoever is asking."""

from collections.abc import Callable, Sequence

from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.enforcement_coordinator import EnforcementCoordinator
from agent.allocator.model.allocations import grant_of
from agent.allocator.model.answer import Answer
from agent.allocator.model.grant import Grant, check_free, check_request, check_together, translate
from agent.allocator.model.ledger import ContainerRef, Holding
from agent.allocator.model.ports import DecisionLog
from agent.allocator.model.tickets import DeviceTable, Ticket
from agent.allocator.node_state import NodeState
from agent.allocator.reservations import Reservation, ref_of
from agent.allocator.resolver.resolver import Resolver
from agent.allocator.settler import Call, Settler
from contract.allocation import Evidence
from contract.resource import Resource


class AllocateCall:
    """Answers ``Allocate`` calls."""

    def __init__(  # noqa: PLR0913 -- the collaborators, by keyword
        self,
        *,
        state: NodeState,
        table: DeviceTable,
        settler: Settler,
        resolver: Resolver,
        coordinator: EnforcementCoordinator,
        publisher: AllocationPublisher,
        decision_log: DecisionLog,
        answer: Callable[[Grant], Answer],
    ) -> None:
        """Assign on *state*; *answer* turns a grant into what its container finds."""
        self._state = state
        self._table = table
        self._settler = settler
        self._resolver = resolver
        self._coordinator = coordinator
        self._publisher = publisher
        self._decision_log = decision_log
        self._answer = answer

    def answer(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Return what the container of these places finds, and assign them to it.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        ids = frozenset(device_ids)
        call = Call("allocate", resource, len(device_ids), chosen=device_ids)
        with self._settler.refusing(call):
            tickets = self._table.read(resource, device_ids)
            with self._state:
                reserved = self._state.reservations.claim(resource, ids)
            if reserved is not None:
                call.asker = reserved.resolution
                with self._state:
                    reservation, grant = reserved, self._vet(reserved, resource, tickets)
                evidence = Evidence.TICKET
            else:
                reservation, grant = self._settler.settle(
                    call,
                    lambda asker, view: (
                        found := Reservation(asker, view),
                        self._vet(found, resource, tickets),
                    ),
                )
                evidence = reservation.resolution.evidence
            ref = ref_of(reservation.resolution)
            # Before anything is assigned: where it cannot be made, nothing has happened.
            found = self._answer(grant)
            with self._coordinator.making(ref, ids, grant) as made:
                self._assign(ref, reservation, resource, ids)
        if reserved is None and reservation.view is None:
            self._decision_log.unadvised(ref, resource, ids)
        self._decision_log.decided("allocate", ref, resource, evidence, ids)
        return found.plus(made)

    def _vet(
        self, reservation: Reservation, resource: Resource, tickets: Sequence[Ticket]
    ) -> Grant:
        """Check that these places can be this container's.

        Raises:
            Refusal: they cannot.
        """
        ledger, resolution = self._state.ledger, reservation.resolution
        ref = ref_of(resolution)
        ids = [str(ticket) for ticket in tickets]
        check_free(
            resource,
            [each for each in ids if ledger.taken(resource, each, but_reusable_by=ref.pod)],
        )
        grant = translate(resource, tickets)
        check_request(resolution.container.demand, grant)
        other = grant_of(ledger, self._table, ref, resource.other)
        if resource is Resource.CORE:
            check_together(grant, other)
        else:
            check_together(other, grant)
        return grant

    def _assign(
        self, ref: ContainerRef, reservation: Reservation, resource: Resource, ids: frozenset[str]
    ) -> None:
        """Assign places that were vetted, and tell the API once that is all of its pod's."""
        resolution = reservation.resolution
        holding = Holding(ids, resolution.evidence, answered=True)
        with self._state as state:
            self._resolver.answered(ref)
            state.ledger.assign(ref, resolution.container.kind, resource, holding)
            state.offers.answered(state.ledger)
            if reservation.view is None:
                state.reservations.note_unadvised(ids, state.ledger)
            self._publisher.publish(reservation.view, parts=True)
