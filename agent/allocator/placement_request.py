"""A request for placement: one call of the kubelet, and all that its answer depends on."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.allocator.model.ledger import ContainerRef
from agent.allocator.model.offers import WithheldCounts
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.tickets import Ticket
from contract.demand import ContainerDemand, PodDemand
from contract.resource import Resource
from contract.wishes import NO_WISHES, Wishes
from placement.scoring import Policy
from placement.search import Plan


@dataclass(frozen=True, slots=True)
class Guidance:
    """What others want of a placement.

    Attributes:
        wishes: the pod's author's.
        chosen: card indices that a scheduler chose, by position in ``spec.containers``.
        strict: whether a choice that does not fit is refused instead of replaced.
    """

    wishes: Wishes = NO_WISHES
    chosen: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False


NO_GUIDANCE = Guidance()


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Where the ledger may be wrong: places that may be occupied although it has them free.

    A plan that heeds all of it is safe. None of it is certain, so nobody is refused for it.

    Attributes:
        hidden: pods that may hold more than the kubelet's record shows.
        reserved: places by card that are planned for another pod.
        kept: places by card that the kubelet may not offer, nobody knows why; several such
            lists, of which less and less is doubtful.
        trusting: the reverse: what the ledger has occupied and the kubelet's record does not
            show counts as free. The last resort before a refusal.
    """

    hidden: tuple[PodView, ...] = ()
    reserved: Mapping[Resource, Mapping[str, int]] = field(default_factory=dict)
    kept: tuple[WithheldCounts, ...] = ()
    trusting: bool = False

    def fewer(self) -> "Iterator[Beliefs]":
        """Return these, and then fewer and fewer of them."""
        for kept in self.kept:
            yield replace(self, kept=(kept,))
            yield Beliefs(kept=(kept,))
        yield replace(self, kept=())
        yield Beliefs()
        yield Beliefs(trusting=True)


NO_BELIEFS = Beliefs()


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
        beliefs: where the ledger may be wrong.
        guidance: what others want.
        certain: it is known that this pod is asking; one that is only guessed is not refused
            for a container that comes later.
    """

    ref: ContainerRef
    container: ContainerDemand
    pod: PodDemand
    resource: Resource
    policy: Policy
    available: AbstractSet[str]
    must: Sequence[Ticket] = ()
    plan: Plan | None = None
    beliefs: Beliefs = NO_BELIEFS
    guidance: Guidance = NO_GUIDANCE
    certain: bool = True
