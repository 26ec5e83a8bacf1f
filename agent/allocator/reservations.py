"""What is reserved and not given out yet: places named, and the plans of whole pods.

Between a preferred call and its ``Allocate`` the kubelet may take its time, and between the
containers of a pod too. What is reserved for one pod is not planned for another. Pure.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.placer import planned_for
from agent.allocator.resolver.resolve import Resolution
from contract.allocation import Evidence
from contract.resource import Resource
from placement.search import Plan

_MOST_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places reserved for one container between its preferred call and its ``Allocate``."""

    resolution: Resolution
    view: PodView | None


def ref_of(resolution: Resolution) -> ContainerRef:
    """Return the container that was found to be asking."""
    return ContainerRef(resolution.pod, resolution.container.name)


class Reservations:
    """What the allocator has reserved, the newest so many of it."""

    def __init__(self) -> None:
        """Reserve nothing."""
        self._reservations: OrderedDict[tuple[Resource, frozenset[str]], Reservation] = (
            OrderedDict()
        )
        self._plans: OrderedDict[PodId, Plan] = OrderedDict()
        self._earlier: set[PodId] = set()  # planned for while another kubelet was there
        self._unadvised: set[frozenset[str]] = set()

    def reserve(
        self, resource: Resource, ids: frozenset[str], reservation: Reservation, plan: Plan
    ) -> None:
        """Reserve places for a container, and keep the plan of its pod."""
        self._plans[reservation.resolution.pod] = plan
        self._earlier.discard(reservation.resolution.pod)
        self._reservations[resource, ids] = reservation
        for memory in (self._reservations, self._plans):
            if len(memory) > _MOST_REMEMBERED:
                memory.popitem(last=False)

    def claim(self, resource: Resource, ids: frozenset[str]) -> Reservation | None:
        """Return the reservation of exactly these places, once."""
        return self._reservations.pop((resource, ids), None)

    def note_unadvised(self, ids: frozenset[str], ledger: Ledger) -> None:
        """Record that the wishes of a pod's author were not known when *ids* were chosen.

        Args:
            ids: device IDs.
            ledger: who holds what; what nobody holds any more is forgotten.
        """
        owned = {device_id for _, device_id in ledger.owners}
        self._unadvised = {each for each in self._unadvised if each <= owned} | {ids}

    def unadvised(self, ids: frozenset[str]) -> bool:
        """Return whether *ids* were chosen without the wishes of the pod's author."""
        return ids in self._unadvised

    def plan(self, pod: PodId) -> Plan | None:
        """Return what is planned for *pod*, of which nobody else has come to take anything."""
        return None if pod in self._earlier else self._plans.get(pod)

    def drop(self, pod: PodId) -> None:
        """Plan nothing more for *pod*."""
        self._plans.pop(pod, None)

    def reserved(
        self, resolution: Resolution, *, live: AbstractSet[PodId], ledger: Ledger
    ) -> Mapping[Resource, Mapping[str, int]]:
        """Count what is planned for other pods and not given to them yet.

        The kubelet admits one pod at a time (K1): once another is known to be asking, those
        before it are admitted, rejected or gone, and what was planned for them is free. Where
        the pod that is asking is only guessed, the one before it may well go on; and one that
        this kubelet has not come to is still to come.

        Args:
            resolution: who is asking.
            live: the pods that the API shows bound here and not finished.
            ledger: what was given out.

        Returns:
            Places by card UUID, by resource.
        """
        reserved: dict[Resource, Counter[str]] = {each: Counter() for each in Resource}
        for pod, plan in tuple(self._plans.items()):
            if pod == resolution.pod:
                continue
            came = pod in ledger.known or not pod.uid
            over = came and resolution.evidence is not Evidence.ORDER
            if over or (pod.uid and pod not in live):
                del self._plans[pod]
                continue
            for resource, counts in planned_for(pod, plan, ledger).items():
                reserved[resource].update(counts)
        return reserved

    def new_kubelet(self, ledger: Ledger) -> None:
        """Forget what no kubelet will claim; plans of pods that hold something stay.

        A kubelet that restarts keeps what its checkpoint shows of a pod (K11) and asks anew for
        the rest, which is on the same card where an init container hands its places on (K7). It
        may come to other pods first, which take what they cannot do without: once it comes to a
        pod, that is planned anew.
        """
        self._reservations.clear()
        self._plans = OrderedDict(
            (pod, plan) for pod, plan in self._plans.items() if pod.uid and ledger.pod_refs(pod)
        )
        self._earlier = set(self._plans)
