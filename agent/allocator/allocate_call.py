"""``Allocate``: check the kubelet's choice, and assign its places to whoever is asking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.enforcement_coordinator import EnforcementCoordinator
from agent.allocator.model.allocations import grant_of
from agent.allocator.model.answer import Answer
from agent.allocator.model.grant import Grant, check_free, check_request, check_together, translate
from agent.allocator.model.ports import DecisionLog
from agent.allocator.model.tickets import DeviceTable, Ticket
from agent.allocator.node_state import NodeState
from agent.allocator.observer import Observer
from agent.allocator.resolver import Resolution, assumed_container
from agent.allocator.settler import Call, Settler
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource, count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateCall:
    """Answers ``Allocate`` calls; *inject* turns a grant into what its container finds."""

    state: NodeState
    table: DeviceTable
    settler: Settler
    observer: Observer
    coordinator: EnforcementCoordinator
    publisher: AllocationPublisher
    decision_log: DecisionLog
    inject: Callable[[Grant], Answer]

    def answer(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Return what the container of these places finds, and assign them to it.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        ids = frozenset(device_ids)
        call = Call("allocate", resource, len(device_ids), named=device_ids)
        with self.settler.refusing(call):
            tickets = self.table.read(resource, device_ids)
            expected = call.asker = self._expected(resource, ids)
            if expected is not None:
                with self.state as state:
                    if not state.answers:  # the agent before reserved them: they are free (R2)
                        state.rebuild({resource: ids})
                    asker, grant = expected, self._vet(expected, resource, tickets)
            else:
                asker, grant = self.settler.settle(
                    call, lambda asker: (asker, self._vet(asker, resource, tickets))
                )
            # Before anything is assigned: where it cannot be made, nothing has happened.
            found = self.inject(grant)
            # Whole cards have all their memory. A guess may be a share: that would have no limit.
            whole = not asker.container.demand.is_share and asker.evidence is not Evidence.ORDER
            unlimited = whole and resource is Resource.MEMORY
            making = self.coordinator.making(asker.ref, ids, grant, unlimited=unlimited)
            with making as made, self.state as state:
                state.answer(asker, resource, ids, allocated=True)
                state.save()
                state.note_advice(ids, known=asker.view is not None)
                self.publisher.publish(asker.view)
        if expected is None and asker.view is None:
            self.decision_log.unadvised(asker.ref, resource, ids)
        evidence = asker.evidence
        if expected is not None and evidence is not Evidence.ORDER:
            evidence = Evidence.TICKET
        self.decision_log.decided("allocate", asker.ref, resource, evidence, ids)
        return found.plus(made)

    def _expected(self, resource: Resource, ids: frozenset[str]) -> Resolution | None:
        """Return the container that had just these places reserved, or got them in a lost answer.

        Its evidence is that of the reservation: a guess stays one when it is carried out. A repeat
        for an init container that has all it asks for is a guess, too: its places may be handed on
        as well (K7), and the file be late (K33).
        """
        written = self.observer.written()
        with self.state as state:
            last, service = state.last_answer(resource, ids, written), state.service
            if last is None or service is None:
                return None
            if state.listed is not None and not state.record.lists(service.pod.key):
                return None
            view = state.pods.view(service.pod)
            container = view.demand.of(last.container) if view is not None else None
            if container is None:  # the API has not told of the pod yet
                held = {**service.given.get(last.container, {}), resource: ids}
                container = assumed_container(last.container, held)
        given = service.given.get(last.container, {})
        complete = all(given.get(one) for one in Resource if count_of(container.demand, one))
        handed_on = last.allocated and complete and container.kind is ContainerKind.INIT
        evidence = Evidence.ORDER if handed_on else last.evidence
        return Resolution(service.pod, container, view, evidence)

    def _vet(self, asker: Resolution, resource: Resource, tickets: Sequence[Ticket]) -> Grant:
        """Check that these places can be this container's; return what they stand for.

        Raises:
            GrantError: they cannot.
        """
        record, ref = self.state.record, asker.ref
        ids = frozenset(str(ticket) for ticket in tickets)
        check_free(resource, record.taken(ref, resource, ids))
        grant = translate(resource, tickets)
        check_request(asker.container.demand, grant)
        others = (grant_of(self.table, one, record.holding(ref, one)) for one in (resource.other,))
        check_together((grant, *filter(None, others)))
        return grant
