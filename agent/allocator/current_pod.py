"""The current pod: the pod that the kubelet is admitting, and what it was assigned. Pure.

The kubelet writes its checkpoint once a container has all that it asks for (K28). What a container
was given until then nobody else knows, and ordinary init containers are not listed either (K4). So
this is the one record of our own. It survives the agent, in the file of
:mod:`agent.allocator.saved_state`: a call that is asked again after a crash is answered as before.
"""

from dataclasses import dataclass, field, replace

from agent.allocator.interfaces import Containers
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId


@dataclass(frozen=True, slots=True)
class Assignment:
    """Device IDs that a container was promised or given in one call.

    Attributes:
        container: the name of the target.
        resource: what was asked for.
        ids: the device IDs.
        evidence: how the target was found.
        allocated: given by ``Allocate``; otherwise reserved by a preferred call.
    """

    container: str
    resource: Resource
    ids: frozenset[str]
    evidence: Evidence
    allocated: bool

    @property
    def is_guess(self) -> bool:
        """Whether it was given to a container that was guessed."""
        return self.allocated and self.evidence is Evidence.ORDER

    def is_for_same(self, other: "Assignment") -> bool:
        """Return whether both are for one container and resource."""
        return (self.container, self.resource) == (other.container, other.resource)


@dataclass(frozen=True, slots=True)
class CurrentPod:
    """The current pod.

    It is void when another pod asks, or another kubelet is there; not already when the checkpoint
    has its containers: that may be overtaken by one which has not (K33).

    Attributes:
        id: which pod, as the API names it.
        uid: the kubelet's UID of it; empty while not known.
        confirmed: the API showed this UID before and after ``List`` first showed the name.
        assignments: the last one last; at most one for a container and a resource.
        allocated: what the containers were given by ``Allocate``, of these.
    """

    id: PodId
    uid: str
    confirmed: bool = False
    assignments: tuple[Assignment, ...] = ()
    allocated: Containers = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Add up what was allocated."""
        given: dict[str, dict[Resource, frozenset[str]]] = {}
        for each in self.assignments:
            if each.allocated:
                given.setdefault(each.container, {})[each.resource] = each.ids
        object.__setattr__(self, "allocated", given)

    def is_pod(self, pod: PodId, uid: str) -> bool:
        """Return whether this is the pod of this ID and kubelet's UID."""
        return self.uid == uid if self.uid or uid else self.id == pod

    def find_evidence(self, container: str, resource: Resource) -> Evidence | None:
        """Return how a container was found to be a target; ``None`` without an assignment."""
        for each in self.assignments:
            if (each.container, each.resource) == (container, resource):
                return each.evidence
        return None

    def with_assignment(self, new: Assignment) -> "CurrentPod":
        """Return this with one more; a reservation ends with the call after it."""
        kept = [each for each in self.assignments if each.allocated and not each.is_for_same(new)]
        return replace(self, assignments=(*kept, new))

    def without(self, wrong: Assignment) -> "CurrentPod":
        """Return this without an assignment."""
        kept = (each for each in self.assignments if not each.is_for_same(wrong))
        return replace(self, assignments=tuple(kept))

    def without_guesses(self) -> "CurrentPod":
        """Return this without what was given to containers that were guessed."""
        kept = (each for each in self.assignments if not each.is_guess)
        return replace(self, assignments=tuple(kept))

    def proven(self, right: Assignment) -> "CurrentPod":
        """Return this with an assignment that the kubelet shows: a guess was right."""
        if right.evidence is not Evidence.ORDER:
            return self
        shown = replace(right, evidence=Evidence.RECORD)
        found = (shown if each.is_for_same(right) else each for each in self.assignments)
        return replace(self, assignments=tuple(found))
