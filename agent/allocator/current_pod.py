"""The current pod: the pod that the kubelet is admitting, and its assignments. Pure.

The kubelet writes its checkpoint once a container has its whole request (K28). Until then only the
agent knows the container's allocation, and ordinary init containers are never listed (K4). So this
is the only allocation state of our own. It outlives the agent in the file of
:mod:`agent.allocator.saved_state`: a call that is repeated after a crash gets the same response.
"""

from dataclasses import dataclass, field, replace

from agent.allocator.interfaces import Checkpoint, Containers, ListedPod
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId, PodInfo


@dataclass(frozen=True, slots=True)
class Assignment:
    """Device IDs that were reserved for a container, or allocated to it, in one call.

    Attributes:
        allocated: whether ``Allocate`` gave them; otherwise a preferred call reserved them.
    """

    container: str
    resource: Resource
    ids: frozenset[str]
    evidence: Evidence
    allocated: bool

    @property
    def is_guess(self) -> bool:
        """Whether it was allocated to a guessed container."""
        return self.allocated and self.evidence is Evidence.ORDER

    def is_for_same(self, other: "Assignment") -> bool:
        """Return whether both are for one container and resource."""
        return (self.container, self.resource) == (other.container, other.resource)


@dataclass(frozen=True, slots=True)
class CurrentPod:
    """The current pod.

    It is replaced by the next call for another pod, and dropped with a new kubelet instance. It is
    kept when the checkpoint has its containers, since an older checkpoint may be written after that
    (K33).

    Attributes:
        id: the pod, with its UID in the API.
        uid: its UID in the kubelet; empty while it is not known.
        confirmed: whether the API showed this UID before and after ``List`` first showed the name.
        assignments: in the order of the calls; at most one for each container and resource.
        allocated: the allocated ones of these, by container.
    """

    id: PodId
    uid: str
    confirmed: bool = False
    assignments: tuple[Assignment, ...] = ()
    allocated: Containers = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        given: dict[str, dict[Resource, frozenset[str]]] = {}
        for each in self.assignments:
            if each.allocated:
                given.setdefault(each.container, {})[each.resource] = each.ids
        object.__setattr__(self, "allocated", given)

    def is_pod(self, pod: PodId, uid: str) -> bool:
        """Return whether this is the pod with this ID, or with this UID in the kubelet."""
        return self.uid == uid if self.uid or uid else self.id == pod

    def is_certain(self, info: PodInfo | None) -> bool:
        """Return whether no checkpoint can correct it.

        *info* is the pod with its UID in the API.
        """
        is_known = info is not None and info.id == self.id
        return is_known and not any(each.is_guess for each in self.assignments)

    def is_shown_by(self, entry: ListedPod) -> bool:
        """Return whether an entry of ``List`` has its name and the slots of an assignment."""
        return entry.key == self.id.key and any(
            one.held.get(each.resource) == each.ids
            for one in entry.containers
            for each in self.assignments
            if each.allocated
        )

    def find_evidence(self, container: str, resource: Resource) -> Evidence | None:
        """Return the evidence for an assignment to a container; ``None`` without an assignment."""
        for each in self.assignments:
            if (each.container, each.resource) == (container, resource):
                return each.evidence
        return None

    def with_assignment(self, new: Assignment) -> "CurrentPod":
        """Return the pod with one more assignment; a reservation ends with the next call."""
        kept = [each for each in self.assignments if each.allocated and not each.is_for_same(new)]
        return replace(self, assignments=(*kept, new))

    def without(self, wrong: Assignment) -> "CurrentPod":
        """Return the pod without an assignment."""
        kept = (each for each in self.assignments if not each.is_for_same(wrong))
        return replace(self, assignments=tuple(kept))

    def moved(self, wrong: Assignment, container: str) -> "CurrentPod":
        """Return the pod with an assignment that was another container's of it."""
        right = replace(wrong, container=container)
        kept = (each for each in self.without(wrong).assignments if not each.is_for_same(right))
        return replace(self, assignments=(*kept, right))

    def without_guesses(self) -> "CurrentPod":
        """Return the pod without allocations to guessed containers."""
        kept = (each for each in self.assignments if not each.is_guess)
        return replace(self, assignments=tuple(kept))

    def proven(self, container: str, resource: Resource) -> "CurrentPod":
        """Return the pod with an assignment proven by the kubelet: a guess was right."""
        found = (
            replace(each, evidence=Evidence.RECORD)
            if (each.container, each.resource, each.evidence)
            == (container, resource, Evidence.ORDER)
            else each
            for each in self.assignments
        )
        return replace(self, assignments=tuple(found))

    def find_called(
        self,
        resource: Resource,
        ids: frozenset[str],
        checkpoint: Checkpoint | None,
        *,
        may_repeat: bool,
    ) -> Assignment | None:
        """Return the last assignment, if an ``Allocate`` of *ids* carries it out or repeats it.

        A call is repeated only if an agent was killed before its response arrived. A call that
        reuses an init container's slots looks the same (K7), but then the checkpoint has that
        container.

        *checkpoint* is ``None`` if it cannot be read; *may_repeat* is whether this may be the first
        call of an agent.
        """
        last = self.assignments[-1] if self.assignments else None
        if last is None or (last.resource, last.ids) != (resource, ids):
            return None
        had = checkpoint.pods.get(self.uid, {}) if checkpoint is not None else {}
        is_known = bool(had.get(last.container, {}).get(resource))
        return last if not last.allocated or (may_repeat and not is_known) else None
