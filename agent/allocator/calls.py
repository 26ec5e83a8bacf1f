"""``GetPreferredAllocation`` and ``Allocate``: find the target, and assign slots to it.

Both take the same steps (:meth:`_ResolvedCall.run`): observe, resolve, and try the call for the
likeliest container; if that fails, for its rivals. If no container matches, they observe once more.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.allocator.grants import (
    Grant,
    check_free,
    check_parts,
    check_request,
    check_together,
    grant_of,
    translate,
)
from agent.allocator.interfaces import DecisionLog
from agent.allocator.node_state import NodeState
from agent.allocator.observer import KubeletObserver
from agent.allocator.placer import Placement, Placer, at_least
from agent.allocator.resolver import Resolution, TargetRequest, assumed_container, resolve
from agent.allocator.search_input import (
    Assumptions,
    PlacementConstraints,
    PlacementRequest,
    needed_after_restart,
)
from agent.allocator.slot_holdings import granted
from agent.allocator.slots import DeviceTable, Slot
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import Offered
from agent.errors import GrantError, Refusal, ResolutionError
from agent.holdings.annotation import AllocationPublisher
from agent.holdings.core import Enforcement
from agent.holdings.edits import ContainerEdits
from contract.allocation import Evidence
from contract.demand import ContainerKind, PodDemand
from contract.resource import Resource
from contract.wishes import NO_WISHES
from placement.pods import PodId
from placement.scoring import Policy

_Result = TypeVar("_Result")
Attempt = Callable[[AllocationSnapshot, Resolution], _Result]
"""Tries to carry out a call for a container that may be the target."""


@dataclass(slots=True)
class Call:
    """One call of the kubelet.

    Attributes:
        kubelet: the kubelet instance that made it.
        name: ``prefer`` or ``allocate``.
        offered: the device IDs to choose from.
        named: the device IDs that the container gets in any case.
        target: the likeliest container, for the report of a refusal; ``None`` until it is resolved.
    """

    kubelet: str
    name: str
    resource: Resource
    size: int
    offered: AbstractSet[str] = frozenset()
    named: Sequence[str] = ()
    target: Resolution | None = None

    def offered_to_any(self) -> Offered:
        """Return the slots that the kubelet offers independent of the container."""
        free = self.offered - frozenset(self.named) if self.named else self.offered
        return {self.resource: free} if self.offered else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResolvedCall:
    """Finds the target of a call, and carries the call out for it."""

    state: NodeState
    observer: KubeletObserver
    decision_log: DecisionLog

    @contextmanager
    def reporting_refusal(self, call: Call) -> Iterator[None]:
        """Report a refusal; the kubelet then rejects the pod.

        If several containers could be the target, the report names none of them.
        """
        try:
            yield
        except Refusal as error:
            target = call.target
            with self.state.of_kubelet(call.kubelet) as state:
                state.refuse(target.pod if target is not None else None)
                state.save()
            ref = target.ref if target is not None and target.sole else None
            self.decision_log.refused(call.name, ref, call.resource, call.size, str(error))
            raise

    def run(self, call: Call, attempt: Attempt[_Result]) -> tuple[Resolution, _Result]:
        """Find the target; return it, and the result of *attempt* for it.

        *attempt* is called with the lock held. A preferred call assigns in it; ``Allocate`` assigns
        later, after injection, which writes files.

        Raises:
            Refusal: no container can be the target, or no attempt succeeds.
            KubeletReplaced: another kubelet runs now than the one that made the call.
        """
        self.observer.observe_for_call(call.kubelet, call.offered_to_any())
        try:
            return self._try(call, attempt, last_resort=False)
        except ResolutionError:
            self.observer.observe_after_relist(call.kubelet, call.offered_to_any())
        return self._try(call, attempt, last_resort=True)

    def _try(
        self, call: Call, attempt: Attempt[_Result], *, last_resort: bool
    ) -> tuple[Resolution, _Result]:
        """Resolve, and try the candidates, the likeliest first, until an attempt succeeds."""
        with self.state.of_kubelet(call.kubelet) as state:
            snapshot, before = state.snapshot, state.last_call
            request = _request(call, state)
            target = call.target = resolve(request, snapshot, before, last_resort=last_resort)
            refusals: list[Refusal] = []
            for each in (target, *target.rivals):
                guessed = each.evidence is Evidence.ORDER
                as_of = state.set_last_call(before.after(snapshot, each.pod, guessed=guessed))
                try:
                    return each, attempt(as_of, each)
                except Refusal as error:
                    refusals.append(error)
            # The kubelet rejects the target's pod, which may have been any of them.
            state.set_last_call(before.after(snapshot, target.pod, guessed=True))
            raise refusals[0]


def _request(call: Call, state: NodeState) -> TargetRequest:
    """Return the facts that a call has about its target.

    Raises:
        GrantError: it names slots of several pods, or slots that another container keeps.
    """
    resource, named, snapshot = call.resource, frozenset(call.named), state.snapshot
    blind = [each for pod in state.served for each in pod.assignments if each.is_guess]
    if not state.last_call.was_guessed_without_list:
        blind = []
    kept = set(snapshot.stable.held[resource] & named)
    owners: list[PodId] = []
    for each in snapshot.changing if named else ():
        named_slots = each.slots(resource) & named
        if named_slots:
            owners.append(each.id)
            kept |= named_slots - each.reusable(resource)
    check_free(resource, kept)
    if len(owners) > 1:
        raise GrantError(f"{resource.unit} of several pods were named together")
    return TargetRequest(resource, call.size, owners[0] if owners else None, named, blind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferredCall(_ResolvedCall):
    """``GetPreferredAllocation``: chooses slots; the settings are those of the allocator."""

    table: DeviceTable
    placer: Placer
    policy: Policy
    strict: bool

    def handle(
        self,
        kubelet: str,
        resource: Resource,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> list[str]:
        """Choose slots, reserve them, and return their device IDs.

        Raises:
            Refusal: no container matches the call, or nothing fits.
            KubeletReplaced: another kubelet runs now than *kubelet*, which made the call.
        """
        call = Call(kubelet, "prefer", resource, size, offered=frozenset(available), named=must)
        with self.reporting_refusal(call):
            kept = self.table.read(resource, must)
            target, placement = self.run(
                call, lambda snapshot, each: self._place(call, kept, snapshot, each)
            )
            with self.state.of_kubelet(kubelet) as state:
                state.save()
        ids = [str(slot) for slot in placement.slots]
        if placement.replaced:
            self.decision_log.replaced(target.ref, placement.replaced, placement.cards)
        if target.info is None:
            self.decision_log.without_wishes(target.ref, resource, ids)
        self.decision_log.decided("prefer", target.ref, resource, target.evidence, ids)
        return ids

    def _place(
        self, call: Call, must: Sequence[Slot], snapshot: AllocationSnapshot, target: Resolution
    ) -> Placement:
        """Choose slots for a container that may be the target, and reserve them for it.

        Raises:
            PlacementError: nothing fits.
        """
        request = self._placement_request(call, must, snapshot, target)
        placement = self.placer.place(request, snapshot)
        ids = frozenset(str(slot) for slot in placement.slots)
        self.state.assign(target, call.resource, ids, allocated=False)
        self.state.keep_plan(target.pod, placement.plan)
        return placement

    def _placement_request(
        self, call: Call, must: Sequence[Slot], snapshot: AllocationSnapshot, target: Resolution
    ) -> PlacementRequest:
        """Return the input of the placement."""
        info, container = target.info, target.container
        if info is None:
            container = at_least(container, self.table)
        return PlacementRequest(
            target.ref,
            container,
            info.demand if info is not None else PodDemand((container,)),
            call.resource,
            self._policy_for(target),
            call.offered,
            must,
            plan=self.state.plan(target.pod),
            assumptions=self._assumptions(call, snapshot),
            constraints=PlacementConstraints(info.wishes, info.chosen, self.strict)
            if info is not None
            else PlacementConstraints(),
            sole_candidate=not target.rivals,
        )

    def _assumptions(self, call: Call, snapshot: AllocationSnapshot) -> Assumptions:
        """Return the slots that the kubelet may withhold, and those that may be free after all."""
        other = call.resource.other
        withheld = snapshot.withheld(call.resource, call.offered, other)
        return Assumptions(
            withheld={other: self.table.count(other, withheld)},
            reserved=needed_after_restart(snapshot, self.table),
            doubtful={other: self.table.count(other, snapshot.uncertain(other))},
        )

    def _policy_for(self, target: Resolution) -> Policy:
        """Return the policy of the pod's author, or else the node's."""
        if target.info is None:
            # Of a pod that only the kubelet knows, the other half of the request is not known yet:
            # it fits best on the card with most free.
            return Policy.SPREAD
        return Policy(target.info.wishes.policy) if target.info.wishes.policy else self.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateCall(_ResolvedCall):
    """``Allocate``: checks the kubelet's choice, and assigns its slots to the target."""

    table: DeviceTable
    enforcement: Enforcement
    publisher: AllocationPublisher

    def handle(self, kubelet: str, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        """Assign these slots to their container, and return its container edits.

        Raises:
            Refusal: the IDs contradict each other, or another container holds them.
            KubeletReplaced: another kubelet runs now than *kubelet*, which made the call.
        """
        ids = frozenset(device_ids)
        call = Call(kubelet, "allocate", resource, len(device_ids), named=device_ids)
        with self.reporting_refusal(call):
            slots = self.table.read(resource, device_ids)
            expected = call.target = self._find_expected(resource, ids)
            if expected is not None:
                with self.state.of_kubelet(kubelet) as state:
                    if not state.assigned_so_far:  # the agent before reserved them (R2)
                        state.assume_free(resource, ids)
                    target, grant = expected, self._check(state.snapshot, expected, resource, slots)
            else:
                target, grant = self.run(
                    call, lambda snapshot, each: self._check(snapshot, each, resource, slots)
                )
            # A guessed container with the cores of whole cards may have a share of several.
            guessed = target.evidence is Evidence.ORDER
            surely_whole = not target.container.demand.is_share and not guessed
            wishes = target.info.wishes if target.info is not None else NO_WISHES
            if guessed:  # variables cannot be corrected: no pod gets another's higher limit
                wishes = replace(wishes, core_limit=None)
            holding = granted(target.ref, ids, grant, is_whole=surely_whole, wishes=wishes)
            # Before the assignment: if this fails, nothing has changed.
            with (
                self.enforcement.preparing(holding) as (edits,),
                self.state.of_kubelet(kubelet) as state,
            ):
                state.assign(target, resource, ids, allocated=True)
                state.save()
                state.note_choice(ids, target.ref if target.info is not None else None)
                self.publisher.publish(target.info)
        if expected is None and target.info is None:
            self.decision_log.without_wishes(target.ref, resource, ids)
        evidence = target.evidence
        if expected is not None and evidence is not Evidence.ORDER:
            evidence = Evidence.TICKET
        self.decision_log.decided("allocate", target.ref, resource, evidence, ids)
        return edits

    def _find_expected(self, resource: Resource, ids: frozenset[str]) -> Resolution | None:
        """Return the container for which exactly these slots are reserved, or were allocated.

        The second case is a repeated call whose response was lost. The evidence is that of the
        reservation: a guess stays a guess when it is carried out. A repeat for an init container
        that already has its whole request is a guess, too: it may as well be the call for the next
        container, which reuses the slots (K7) while the checkpoint is late (K33).
        """
        checkpoint = self.observer.read_checkpoint()
        with self.state as state:
            last, current = state.find_assignment(resource, ids, checkpoint), state.current
            if last is None or current is None:
                return None
            if state.listed is not None and not state.snapshot.lists(current.id.key):
                return None
            info = state.known.find(current.id)
            container = info.demand.of(last.container) if info is not None else None
            if container is None:  # the API has not shown the pod yet
                held = current.allocated.get(last.container, {})
                request = TargetRequest(resource, len(ids), named=ids)
                container = assumed_container(last.container, held, request)
        given = current.allocated.get(last.container, {})
        complete = all(given.get(one) for one in Resource if one.count_in(container.demand))
        may_be_reused = last.allocated and complete and container.kind is ContainerKind.INIT
        evidence = Evidence.ORDER if may_be_reused else last.evidence
        return Resolution(current.id, container, info, evidence)

    def _check(
        self,
        snapshot: AllocationSnapshot,
        target: Resolution,
        resource: Resource,
        slots: Sequence[Slot],
    ) -> Grant:
        """Check that the container may have these slots; return their grant.

        Raises:
            GrantError: it may not.
        """
        ids = frozenset(str(slot) for slot in slots)
        check_free(resource, snapshot.taken(target.ref, resource, ids))
        grant = translate(resource, slots)
        check_request(target.container.demand, grant)
        check_parts(target.container.demand, grant)
        held = snapshot.holding(target.ref, resource.other)
        other = grant_of(self.table, resource.other, held)
        check_together((grant, other) if other is not None else (grant,))
        return grant
