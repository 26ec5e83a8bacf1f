"""A request for placement: one call of the kubelet, and all that its answer depends on."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.allocator.interfaces import ContainerRef
from agent.allocator.slots import Slot
from contract.demand import ContainerDemand, PodDemand
from contract.resource import Resource
from contract.wishes import NO_WISHES, Wishes
from placement.scoring import Policy
from placement.search import Plan


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the pod's author and a scheduler want of a placement.

    Attributes:
        wishes: the pod's author's.
        chosen: card indices that a scheduler chose, by container name.
        strict: whether a choice that does not fit is refused instead of replaced.
    """

    wishes: Wishes = NO_WISHES
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False


UNCONSTRAINED = Constraints()


Counts: TypeAlias = Mapping[Resource, Mapping[str, int]]
"""Places by card, by resource."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions about free places, where the record may be wrong.

    Attributes:
        withheld: places that the kubelet may count as used, though nobody holds them (K31).
        reserved: places that other pods must have on cards where they have some already.
        doubtful: places of pods that are not listed and may be over.
    """

    withheld: Counts = field(default_factory=dict)
    reserved: Counts = field(default_factory=dict)
    doubtful: Counts = field(default_factory=dict)

    def relaxed(self) -> "Iterator[Assumptions]":
        """Return these assumptions, then weaker and weaker ones."""
        yield Assumptions(withheld=self.withheld, reserved=self.reserved)
        yield Assumptions(withheld=self.withheld)
        yield Assumptions()
        yield Assumptions(doubtful=self.doubtful)


NO_ASSUMPTIONS = Assumptions()


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One container to place, so that its pod's later ones find places too.

    Attributes:
        ref: whose places these will be.
        container: what it asks for.
        pod: its whole pod, to look ahead.
        resource: which resource is asked for.
        policy: which card a share prefers.
        available: the IDs the kubelet offers; a place outside them is never chosen.
        must: places the kubelet hands on (``must_include``).
        plan: what was planned when an earlier call of its pod was answered.
        assumptions: where the record may be wrong.
        constraints: what the pod's author and a scheduler want.
        certain: it is known that this pod is asking; one that is only guessed is not refused
            for a container that comes later.
    """

    ref: ContainerRef
    container: ContainerDemand
    pod: PodDemand
    resource: Resource
    policy: Policy
    available: AbstractSet[str]
    must: Sequence[Slot] = ()
    plan: Plan | None = None
    assumptions: Assumptions = NO_ASSUMPTIONS
    constraints: Constraints = UNCONSTRAINED
    certain: bool = True
